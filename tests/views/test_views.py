"""What each view shows of small logs."""

from __future__ import annotations

import msgspec
import pytest

from llmgw import views
from llmgw.catalog.entries import Catalog
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.telemetry import NodeSample
from llmgw.hardware.types import CardReading, Device, DeviceReading, Excluded, Readings
from llmgw.views.replicas import how_far
from tests.views.history import (
    GIB,
    History,
    assigned,
    entry,
    failed,
    inventory,
    led,
    mig_empty,
    ready,
    served,
    serving,
    started,
    starting,
)


def as_json(rows: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = msgspec.json.decode(msgspec.json.encode(rows))
    return found


class TestNodes:
    def test_a_node_shows_what_it_has_and_what_runs_on_it(self) -> None:
        (row,) = views.nodes(serving().state)
        assert (row.name, row.state, row.backend) == ("n1", "up", "nvidia-smi")
        assert row.cards == row.devices == {"a100-80g": 2}
        assert row.replicas == ("r1",)
        assert row.heard == "2026-03-01T12:00:08.000Z"

    def test_a_node_that_left_is_stopped_and_a_silent_one_is_lost(self) -> None:
        history = led(started(started(History(), "n1"), "n2"))
        history.write(e.NodeStopped(engines="stopped"), "n1")
        history.write(e.NodeLost(term=1, node="n2", silent_seconds=46))
        assert [row.state for row in views.nodes(history.state)] == ["stopped", "lost"]

    def test_the_command_goes_from_due_over_waiting_to_done(self) -> None:
        history = assigned(served(led(started(History())), entry()))
        seen = [views.nodes(history.state)[0].command]
        history.command(SetAssignments(node="n1", revision=1, term=1, at=6))
        seen.append(views.nodes(history.state)[0].command)
        history.write(e.CommandCompleted(revision=1, term=1), "n1")
        seen.append(views.nodes(history.state)[0].command)
        assert seen == ["due", "waiting", "done"]

    def test_a_refused_command_says_why(self) -> None:
        history = assigned(served(led(started(History())), entry()))
        history.command(SetAssignments(node="n1", revision=1, term=1, at=6))
        history.write(e.CommandRefused(revision=1, term=1, reason="no such device"), "n1")
        (row,) = views.nodes(history.state)
        assert (row.command, row.refused) == ("refused", "no such device")

    def test_a_node_that_was_never_commanded_has_no_command(self) -> None:
        assert "command" not in as_json(views.nodes(started(History()).state))[0]

    def test_what_is_excluded_is_counted_and_conditions_are_named(self) -> None:
        history = started(History(), excluded=(mig_empty(0),))
        hot = e.Condition(device=1, name="hot", detail="91 °C")
        history.write(e.NodeConditionsChanged(conditions=(hot,)), "n1")
        (row,) = views.nodes(history.state)
        carved = "0 mig-empty: MIG is on and no instance is carved"
        assert (row.excluded, row.conditions) == (1, (carved, "1 hot: 91 °C"))


class TestDevices:
    def test_a_held_device_names_its_replicas_and_what_they_hold(self) -> None:
        held, free = views.devices(serving().state)
        assert (held.state, held.replicas, held.memory_held_bytes) == ("held", ("r1",), 10 * GIB)
        assert (free.state, free.replicas, free.memory_held_bytes) == ("free", (), 0)

    def test_memory_in_use_is_absent_unless_a_sample_tells_it(self) -> None:
        row = as_json(views.devices(serving().state))[0]
        assert row["memory_total_bytes"] == 80 * GIB
        assert not {"memory_used_bytes", "memory_free_bytes", "temperature_celsius"} & row.keys()

    def test_a_sample_is_shown_where_it_was_measured_and_a_zero_stays_zero(self) -> None:
        readings = Readings(
            cards=(CardReading(index=0, uuid="GPU-n1-0", temperature_celsius=61),),
            devices=(DeviceReading(id=0, uuid="GPU-n1-0", memory_used_bytes=0),),
        )
        sample = NodeSample(node="n1", session="s", number=1, readings=readings)
        first, second = as_json(views.devices(serving().state, {"n1": sample}))
        assert (first["memory_used_bytes"], first["temperature_celsius"]) == (0, 61)
        assert "memory_used_bytes" not in second

    def test_a_reading_of_another_card_under_the_same_number_is_not_taken(self) -> None:
        reading = DeviceReading(id=0, uuid="GPU-other", memory_used_bytes=5)
        readings = Readings(devices=(reading,))
        sample = NodeSample(node="n1", session="s", number=1, readings=readings)
        assert views.devices(serving().state, {"n1": sample})[0].memory_used_bytes is None

    def test_a_sample_that_failed_shows_nothing(self) -> None:
        sample = NodeSample(node="n1", session="s", number=1, error="nvidia-smi hangs")
        assert views.devices(serving().state, {"n1": sample})[0].memory_used_bytes is None

    def test_a_card_without_devices_is_listed_with_the_reason(self) -> None:
        bare = inventory(cards=2)
        history = started(History(), devices=bare.devices[:1], excluded=(mig_empty(1),))
        first, second = views.devices(history.state)
        assert (first.state, first.label) == ("free", "0")
        assert (second.state, second.label, second.reason) == ("excluded", "1", "mig-empty")
        assert (second.device_class, second.memory_total_bytes) == ("a100-80g", None)

    def test_a_card_that_is_only_known_to_be_lost_is_listed_without_a_class(self) -> None:
        lost = Excluded(card=3, reason="lost", detail="it fell off the bus")
        rows = views.devices(started(History(), excluded=(lost,)).state)
        assert (rows[-1].label, rows[-1].reason, rows[-1].device_class) == ("3", "lost", None)

    def test_an_exclusion_beside_its_device_is_told_once(self) -> None:
        out = Excluded(card=0, reason="needs-reset", detail="a reset is pending")
        first, second = views.devices(started(History(), excluded=(out,)).state)
        assert (first.state, first.reason, first.detail) == (
            "excluded",
            "needs-reset",
            "a reset is pending",
        )
        assert second.state == "free"

    def test_a_mig_instance_is_shown_as_card_and_instance(self) -> None:
        instance = Device(
            id=1203,
            label="2/mig3",
            card=2,
            uuid="MIG-1",
            device_class="a100-80g-mig-1g.10gb",
            profile="1g.10gb",
            memory_total_bytes=10 * GIB,
        )
        (row,) = views.devices(started(History(), cards=0, devices=(instance,)).state)
        assert (row.label, row.profile) == ("2/mig3", "1g.10gb")

    @pytest.mark.parametrize("name", ["hot", "occupied", "worn", "lost", "xid", "of-tomorrow"])
    def test_a_condition_takes_a_device_out(self, name: str) -> None:
        condition = e.Condition(device=1, name=name, detail="told")
        history = started(History())
        history.write(e.NodeConditionsChanged(conditions=(condition,)), "n1")
        row = views.devices(history.state)[1]
        assert (row.state, row.reason, row.detail) == ("excluded", name, "told")

    def test_nothing_is_free_on_a_node_that_is_not_there(self) -> None:
        history = started(History()).write(e.NodeStopped(engines="stopped"), "n1")
        assert {row.reason for row in views.devices(history.state)} == {"node stopped"}


class TestReplicas:
    def test_a_ready_replica_says_where_it_answers(self) -> None:
        (row,) = views.replicas(serving().state)
        assert (row.phase, row.address, row.pid) == ("ready", "127.0.0.1:18100", 42)
        assert (row.devices, row.attempts, row.since) == (("0",), 1, "2026-03-01T12:00:08.000Z")

    def test_a_starting_replica_has_no_address_yet(self) -> None:
        history = starting(assigned(served(led(started(History())), entry())))
        (row,) = as_json(views.replicas(history.state))
        assert row["phase"] == "starting"
        assert not {"address", "pid", "reason"} & row.keys()

    def test_a_starting_replica_says_how_far_its_engine_is(self) -> None:
        history = starting(assigned(served(led(started(History())), entry())))
        progress = {"r1/0": "Loading weights took 3.14 seconds"}
        sample = NodeSample(
            node="n1",
            session="s",
            number=1,
            progress=progress,
            loaded_bytes={"r1/0": 3 << 30},
            weights_bytes={"r1/0": 12 << 30},
        )
        samples = {"n1": sample}
        (row,) = views.replicas(history.state, samples)
        assert row.progress == "Loading weights took 3.14 seconds"
        assert (row.loaded_bytes, row.weights_bytes) == (3 << 30, 12 << 30)
        (row,) = views.replicas(ready(history).state, samples)
        told = (row.progress, row.loaded_bytes, row.weights_bytes)
        assert told == (None, None, None), "an old sample says nothing of it now"

    @pytest.mark.parametrize(
        ("told", "words"),
        [
            (("loading", 3 << 30, 12 << 30), "read 3.0 of 12.0 GiB: loading"),
            (("loading", 300 << 20, 500 << 20), "read 300 of 500 MiB: loading"),
            ((None, 3 << 30, None), "read 3.0 GiB"),
            (("loading", None, None), "loading"),
            ((None, None, None), None),
        ],
    )
    def test_how_far_an_engine_is_is_said_as_far_as_it_is_known(
        self, told: tuple[str | None, int | None, int | None], words: str | None
    ) -> None:
        assert how_far(*told) == words

    def test_a_failed_replica_says_why_and_what_to_do(self) -> None:
        (row,) = views.replicas(failed(serving()).state)
        assert (row.phase, row.failures, row.address) == ("failed", 1, None)
        assert (row.reason, row.meaning) == ("exit code 1", "the model does not fit")
        assert row.advice == "give it more memory"

    def test_a_replica_on_a_lost_node_is_lost_until_the_node_returns(self) -> None:
        history = serving().write(e.NodeLost(term=1, node="n1", silent_seconds=50))
        (lost,) = views.replicas(history.state)
        history.write(e.NodeReturned(term=1, node="n1"))
        (back,) = views.replicas(history.state)
        assert (lost.phase, back.phase) == ("lost", "ready")

    def test_an_address_of_version_six_is_in_brackets(self) -> None:
        history = assigned(served(led(started(History())), entry()))
        event = e.ReplicaBecameReady(
            replica="r1", generation=1, address="::1", port=9, pid=1, seconds=1
        )
        (row,) = views.replicas(starting(history).write(event, "n1").state)
        assert row.address == "[::1]:9"

    def test_replicas_are_in_the_order_of_their_numbers(self) -> None:
        history = served(led(started(History(), cards=12)), entry(replicas=11))
        for number in range(11):
            assigned(history, f"r{number + 1}", device=number)
        names = [row.replica for row in views.replicas(history.state)]
        assert names == [f"r{number + 1}" for number in range(11)]


class TestStatus:
    def test_an_empty_log_gives_an_empty_status(self) -> None:
        status = views.status(Cluster(), "here")
        assert (status.cluster, status.sequence, status.leader) == ("here", 0, None)
        assert (status.models, status.devices) == ((), ())

    def test_models_and_devices_are_counted(self) -> None:
        status = views.status(serving().state)
        (model,) = status.models
        (devices,) = status.devices
        assert (model.wanted, model.ready, model.starting, model.missing) == (1, 1, 0, 0)
        assert (devices.total, devices.free, devices.held, devices.excluded) == (2, 1, 1, 0)
        assert (status.term, status.leader, status.nodes.up) == (1, "controller n1", 1)

    def test_the_classes_add_up(self) -> None:
        history = serving()
        started(history, "n2", excluded=(mig_empty(0), mig_empty(7)))
        for row in views.status(history.state).devices:
            assert row.total == row.free + row.held + row.excluded

    def test_a_model_without_a_place_says_why(self) -> None:
        history = served(led(started(History())), entry(replicas=3))
        history.write(
            e.ModelLeftUnplaced(
                term=1, at=5, model="tiny", missing=3, refusals={"in use": 2, "hot": 1}
            )
        )
        (model,) = views.status(history.state).models
        assert (model.wanted, model.missing, model.refusals) == (3, 3, {"in use": 2, "hot": 1})

    def test_replicas_on_a_lost_node_do_not_count_as_ready(self) -> None:
        history = serving().write(e.NodeLost(term=1, node="n1", silent_seconds=50))
        (model,) = views.status(history.state).models
        assert (model.ready, model.lost) == (0, 1)

    def test_a_model_that_left_the_catalog_is_listed_while_it_runs(self) -> None:
        (model,) = views.status(served(serving()).state).models
        assert (model.model, model.wanted, model.ready) == ("tiny", 0, 1)

    def test_a_catalog_waits_for_its_answer(self) -> None:
        history = led(History()).write(e.CatalogApplied(catalog=Catalog()))
        assert views.status(history.state).pending_catalog == 2
        history.write(e.CatalogRejected(term=1, at=2, request=2, reasons=("a: named twice",)))
        status = views.status(history.state)
        assert (status.pending_catalog, status.rejected_catalog) == (None, ("a: named twice",))

    def test_odd_records_are_counted(self) -> None:
        history = led(started(History()).again()).garbage()
        history.garbage(type_="node.sneezed")
        history.write(e.NodeLost(term=0, node="n1", silent_seconds=1))
        odd = views.status(history.state).records
        assert (odd.duplicates, odd.unreadable, odd.unknown, odd.void) == (1, 1, 1, 1)


class TestEvents:
    def test_each_record_says_in_plain_words_what_happened(self) -> None:
        history = failed(serving()).garbage()
        history.command(SetAssignments(node="n1", revision=1, term=1, at=6))
        assert [row.summary for row in views.events(history.records)] == [
            "agent 0.1.0 came up at 127.0.0.1",
            "has 2 a100-80g, read by nvidia-smi",
            "controller n1 leads (term 1)",
            "catalog from models.yaml: tiny",
            "the catalog of 4 is in force",
            "r1 of tiny goes to n1, device 0",
            "r1 starts on device 0, port 18100 (attempt 1)",
            "r1 answers at 127.0.0.1:18100 after 3.2 s (pid 42)",
            "r1 failed (attempt 1): exit code 1: the model does not fit; next attempt in 2 s",
            "unreadable: Input data was truncated",
            "revision 1: run nothing",
        ]

    def test_every_type_has_a_summary(self) -> None:
        from llmgw.views.summaries import _WORDS

        assert set(e.EVENTS.values()) <= set(_WORDS)

    def test_the_whole_of_an_event_is_in_its_data(self) -> None:
        row = as_json(views.events(serving().records))[-1]
        assert (row["type"], row["origin"], row["node"]) == ("replica.ready", "node", "n1")
        assert row["data"] == {
            "replica": "r1",
            "generation": 1,
            "address": "127.0.0.1",
            "port": 18100,
            "pid": 42,
            "seconds": 3.25,
        }

    def test_records_are_chosen_by_type_node_and_replica(self) -> None:
        records = started(serving(), "n2").records
        by_type = [r.sequence for r in records if views.concerns(r, wire="replica.ready")]
        by_node = [r.sequence for r in records if views.concerns(r, node="n2")]
        by_replica = [r.sequence for r in records if views.concerns(r, replica="r1")]
        assert (by_type, by_node, by_replica) == ([8], [9, 10], [6, 7, 8])

    def test_a_decision_concerns_the_nodes_that_it_places_on(self) -> None:
        records = serving().write(e.NodeLost(term=1, node="n1", silent_seconds=9)).records
        found = [r.body.wire for r in records if views.concerns(r, node="n1") and not r.node]  # type: ignore[union-attr]
        assert found == ["replica.assigned", "node.lost"]

    def test_what_changed_nothing_is_listed_with_the_reason(self) -> None:
        history = led(started(History()).again()).garbage()
        history.garbage(type_="node.sneezed")
        history.write(e.NodeLost(term=0, node="n1", silent_seconds=1))
        rows = views.rejected(history.records)
        assert [(row.sequence, row.kind) for row in rows] == [
            (3, "duplicate"),
            (5, "unreadable"),
            (6, "unknown type"),
            (7, "void"),
        ]
        for upto in range(len(history.records)):
            state = Cluster()
            first = views.rejected(history.records[:upto], state)
            assert first + views.rejected(history.records[upto:], state) == rows
        assert "truncated" in rows[1].detail
        assert rows[3].detail == "term 0 does not lead; 1 does"


def test_views_only_read() -> None:
    state = failed(serving()).state
    before = msgspec.json.encode(state)
    for view in views.VIEWS.values():
        view(state)
    assert msgspec.json.encode(state) == before


def test_times_are_utc_to_the_millisecond() -> None:
    history = ready(starting(assigned(served(led(started(History())), entry()))))
    assert [row.time for row in views.events(history.records)][:2] == [
        "2026-03-01T12:00:01.000Z",
        "2026-03-01T12:00:02.000Z",
    ]
