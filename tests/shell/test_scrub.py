"""A scrubbed log: nothing of what was planted is in it, and it folds and verifies as before."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from itertools import count
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw import wire
from llmgw.catalog.entries import Labels
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.records import NewerVersion, Record, UnknownType, Unreadable
from llmgw.core.verify import verify
from llmgw.folding import fold
from llmgw.log.base import Message
from llmgw.log.scrub import CLUSTER, Scrubber
from llmgw.testing.builders import From, Story, applied, card, elected, entry, inventory, joined
from llmgw.testing.simulator import Simulation
from llmgw.views import status
from llmgw.wire import Outgoing

PLANTED = "acme"


def messages_of(log: list[Outgoing]) -> list[Message]:
    return [Message(n, n * 10**9, m.subject, m.payload) for n, m in enumerate(log, start=1)]


def scrubbed(messages: list[Message]) -> list[Message]:
    scrubber = Scrubber()
    for message in messages:
        scrubber.learn(message)
    scrubber.settle()
    return [scrubber.scrub(message) for message in messages]


def decoded(messages: list[Message]) -> list[Record]:
    return [wire.decode(m.sequence, m.time_ns, m.subject, m.payload) for m in messages]


def folded(messages: list[Message]) -> Cluster:
    state = Cluster()
    fold(state, messages)
    return state


def counts(messages: list[Message]) -> dict[str, Any]:
    """What of a status must be the same whatever things are called."""
    found = msgspec.to_builtins(status(folded(messages)))
    kept = ("sequence", "term", "nodes", "devices", "records", "needs_upgrade", "catalog")
    models = [
        {k: v for k, v in row.items() if k not in ("model", "refusals")} for row in found["models"]
    ]
    refusals = [sorted(row.get("refusals", {}).values()) for row in found["models"]]
    return {name: found.get(name) for name in kept} | {"models": models, "refusals": refusals}


def clean(messages: list[Message]) -> bool:
    return not any(PLANTED in f"{m.subject}{m.payload!r}".lower() for m in messages)


def secretive() -> Story:
    """A log in which everything that a person may name is a secret."""
    labels = {"acme/zone": "acme-eu-1", "rack": "acme7"}
    wants = {"require": {"acme/zone": "acme-eu-*"}, "prefer": {"rack": "acme9"}}
    made = entry(
        "acme-chat",
        gib=10,
        source="/acme/models/acme.gguf",
        args=("--acme", "acme", "--chat-template=/acme/t"),
        env={"ACME_HOME": "/acme", "HF_HOME": "acme"},
        health_path="/acme",
        labels=msgspec.convert(wants, type=Labels),
    )
    story = Story()
    for node in ("acme-gpu-1", "acme-gpu-2"):
        came = e.NodeStarted(
            boot_id="acme-boot", agent_version="acme", address="gpu.acme.example", labels=labels
        )
        taken = e.NodeInventoryTaken(
            inventory=msgspec.structs.replace(
                inventory(node, card(0, uuid=f"GPU-acme-{node}", domain=f"acme-{node}")),
                warnings=("acme",),
                fallback_from="nvml: acme",
            )
        )
        story.given(From(node, came), From(node, taken))
    story.given(elected(1, "acme-k1-123"), applied(made)).decided()
    at = "acme-gpu-1"
    failed = e.ReplicaFailed(
        replica="r1",
        generation=1,
        reason="cannot open /acme/models",
        output="acme said no",
        meaning="acme",
        advice="ask acme",
        retry_seconds=1,
    )
    story.given(
        From(at, e.ReplicaStarting(replica="r1", generation=1, port=1, devices=(0,))),
        From(at, failed),
        From(at, e.NodeHardwareUnreadable(reason="acme")),
        From(at, e.StrayEngineStopped(pid=1, marker="acme")),
        From(at, e.CommandRefused(revision=1, term=1, reason="acme")),
        applied(made, entry("acme-big", gib=40, replicas=3)),
    ).decided()
    return story.given(applied(entry("acme-bad", engine="acme"))).decided()


class TestWhatIsLeft:
    def test_nothing_that_a_person_named_is_in_it(self) -> None:
        made = messages_of(secretive().log)
        assert not clean(made)
        found = scrubbed(made)
        assert clean(found)
        assert all(m.subject.startswith(f"llmgw.v1.{CLUSTER}.") for m in found)

    def test_it_folds_to_the_same_and_verifies(self) -> None:
        made = messages_of(secretive().log)
        found = scrubbed(made)
        assert counts(found) == counts(made)
        before, after = verify(decoded(made)), verify(decoded(found))
        assert before.difference is None
        assert after.difference is None
        assert (after.decisions, after.commands) == (before.decisions, before.commands)
        assert after.decisions > 3

    def test_the_same_name_is_the_same_pseudonym_everywhere(self) -> None:
        state = folded(scrubbed(messages_of(secretive().log)))
        assert [*state.nodes] == ["node-1", "node-2"]
        assert {part.node for r in state.replicas.values() for part in r.parts} <= {*state.nodes}
        reasons = [reason for r in state.replicas.values() for reason in r.reasons]
        assert any(reason.startswith("node-1: 0 of class l40s-48g") for reason in reasons)

    def test_what_was_unreadable_unknown_or_newer_stays_so_and_says_nothing(self) -> None:
        made = Story().given(*joined("n1", card(0)))
        subject = f"{wire.prefix('c')}.event.node.n1"
        newer = made.log[0].payload.replace(b'"dataversion":1', b'"dataversion":7')
        for at, payload in (
            (f"{subject}.node.started", b'{"acme'),
            (f"{subject}.acme.happened", b'{"acme": 1}'),
            (f"{subject}.node.started", newer.replace(b'"b1"', b'"acme"')),
            ("llmgw.v1.c.event.acme", b"acme"),
        ):
            made.append(Outgoing(at, payload, payload.hex()[:40]))
        messages = messages_of(made.log)
        found = scrubbed(messages)
        assert clean(found)
        kinds = [type(record.body) for record in decoded(found)][-4:]
        assert kinds == [Unreadable, UnknownType, NewerVersion, Unreadable]
        assert kinds == [type(record.body) for record in decoded(messages)][-4:]


numbers = count(1)


def filled(kind: Any) -> Any:  # noqa: ANN401 -- any type, and a value of it
    """Return a value of a type in which every text is planted."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return filled(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return filled(next(a for a in arguments if a is not type(None)))
    if origin is tuple:
        return (filled(arguments[0]),)
    if origin in (dict, Mapping):
        return {filled(arguments[0]): filled(arguments[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        return kind(**{name: filled(hints[name]) for name in kind.__struct_fields__})
    return {str: f"{PLANTED}{next(numbers)}", int: 1, float: 1.0, bool: True}[kind]


WITH_TEXTS = [k for k in (*e.EVENTS.values(), SetAssignments) if PLANTED in repr(filled(k))]


@pytest.mark.parametrize("kind", WITH_TEXTS, ids=lambda kind: kind.wire)
def test_every_text_of_every_type_is_treated(kind: type[Any]) -> None:
    body = filled(kind)
    made = Story()
    message = made.encode(body if kind is SetAssignments else From(PLANTED, body))
    (found,) = scrubbed(messages_of([message]))
    left = re.sub(STAYS, "", found.payload.decode())
    assert PLANTED not in left


STAYS = re.compile(
    r'"(?:name|class|device_class|label|profile|pci|cpu_affinity|compute_mode|recovery_action)":'
    r'(?:"acme\d+"|\["acme\d+"\])|"throttled_by":\["acme\d+"\]|"state":"acme\d+"'
    r'|"reasons?":(?:"acme\d+"|\["acme\d+"\])|"(?:refusals|score)":\{"acme\d+":1\}'
)
"""Words of the hardware, and what controllers say of their decisions."""


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1_000_000))
def test_any_history_folds_and_verifies_as_before(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run()
    made = [Message(m.sequence, m.time_ns, m.subject, m.payload) for m in simulation.log.messages]
    found = scrubbed(made)
    assert counts(found) == counts(made)
    before, after = verify(decoded(made)), verify(decoded(found))
    assert after.difference is None
    assert (after.decisions, after.void, after.outdated) == (
        before.decisions,
        before.void,
        before.outdated,
    )
