"""How conditions are shown: once each, with what they mean, what to do and what they do."""

from __future__ import annotations

import pytest

from llmgw import views
from llmgw.cli.tables import view_lines
from llmgw.core import events as e
from llmgw.core.meanings import AVOIDED, MEANINGS
from llmgw.hardware.types import Excluded
from llmgw.views.conditions import conditions
from tests.views.history import History, mig_empty, serving, started

HUNG = e.Condition(name="tool-hung", detail="nvidia-smi (pid 7) hangs in the driver")


def told(*found: e.Condition, history: History | None = None) -> History:
    """A node whose agent has logged these conditions."""
    history = history or started(History())
    return history.write(e.NodeConditionsChanged(conditions=found), "n1")


def condition(name: str, device: int | None = 1, detail: str = "so") -> e.Condition:
    return e.Condition(device=device, name=name, detail=detail)


def shown(view: object, *, wide: bool = False) -> str:
    return "\n".join(view_lines(view, wide))


class TestDevices:
    @pytest.mark.parametrize("name", sorted(AVOIDED))
    def test_a_device_that_is_better_avoided_is_free_all_the_same(self, name: str) -> None:
        row = views.devices(told(condition(name)).state)[1]
        assert (row.state, row.reason, row.avoided) == ("free", None, True)
        assert (row.conditions, row.detail) == ((name,), "so")
        assert name in shown([row])

    @pytest.mark.parametrize("name", sorted(MEANINGS))
    def test_each_says_what_it_means_and_what_to_do_about_this_card(self, name: str) -> None:
        row = views.devices(told(condition(name)).state)[1]
        assert row.meaning == MEANINGS[name][0]
        assert row.advice == MEANINGS[name][1].replace("-i N", "-i 1")
        assert row.advice in shown([row], wide=True)

    def test_a_name_of_a_newer_agent_is_shown_without_a_meaning(self) -> None:
        row = views.devices(told(condition("of-tomorrow")).state)[1]
        assert (row.reason, row.detail, row.meaning) == ("of-tomorrow", "so", None)

    def test_of_several_the_one_that_keeps_placement_out_is_the_reason(self) -> None:
        row = views.devices(told(condition("throttled"), condition("worn")).state)[1]
        assert (row.reason, row.avoided) == ("worn", False)
        assert row.conditions == ("throttled", "worn")

    def test_what_inventory_and_agent_both_say_is_said_once(self) -> None:
        out = Excluded(card=1, reason="worn", detail="a row failed")
        row = views.devices(told(condition("worn"), history=_with(out)).state)[1]
        assert (row.conditions, row.detail) == (("worn",), "a row failed")

    def test_a_card_without_devices_says_what_to_do(self) -> None:
        row = views.devices(_with(mig_empty(5)).state)[-1]
        assert row.conditions == ("mig-empty",)
        assert row.advice is not None
        assert "nvidia-smi mig -i 5 -cgi" in row.advice

    def test_nothing_is_free_on_a_node_that_the_operator_keeps_to_himself(self) -> None:
        history = started(History()).write(e.NodeCordoned(node="n1"))
        assert {row.reason for row in views.devices(history.state)} == {"node cordoned"}


class TestNodes:
    def test_those_of_the_whole_node_come_first_and_name_no_device(self) -> None:
        (row,) = views.nodes(told(HUNG, condition("hot", 0, "91 °C")).state)
        assert row.conditions == (f"tool-hung: {HUNG.detail}", "0 hot: 91 °C")
        first, second = row.conditions_explained
        assert (first.device, second.device) == (None, "0")
        assert (first.advice, second.advice) == (
            MEANINGS["tool-hung"][1],
            MEANINGS["hot"][1].replace("-i N", "-i 0"),
        )

    def test_wide_says_what_each_means_and_what_to_do(self) -> None:
        text = shown(views.nodes(told(condition("hot", 0)).state), wide=True)
        assert f"n1, 0: hot: {MEANINGS['hot'][0]}" in text
        assert "what to do: nvidia-smi -q -d TEMPERATURE -i 0" in text

    def test_what_inventory_and_agent_both_say_is_said_once(self) -> None:
        history = told(
            condition("worn"), history=_with(Excluded(card=1, reason="worn", detail="a"))
        )
        assert [str(c) for c in conditions(history.state.nodes["n1"])] == ["1 worn: a"]

    def test_an_instance_is_named_as_everywhere(self) -> None:
        (found,) = conditions(told(condition("hot", 1203)).state.nodes["n1"])
        assert str(found) == "2/mig3 hot: so"
        assert found.advice is not None
        assert "-i 2" in found.advice

    def test_labels_and_what_the_operator_asked_for_are_shown(self) -> None:
        up = e.NodeStarted(boot_id="b", agent_version="1", labels={"zone": "b", "rack": "7"})
        history = History().write(up, "n1").write(e.NodeCordoned(node="n1"))
        (row,) = views.nodes(history.state)
        assert (row.labels, row.cordoned) == ({"rack": "7", "zone": "b"}, True)
        text = shown([row], wide=True)
        assert "up (cordoned)" in text
        assert "rack=7, zone=b" in text
        history.write(e.NodeDrained(node="n1"))
        assert "up (draining)" in shown(views.nodes(history.state))


class TestStatus:
    def test_each_name_is_counted_over_the_cluster(self) -> None:
        history = told(condition("hot", 0), condition("hot", 1), HUNG, history=_with(mig_empty(5)))
        status = views.status(history.state)
        assert status.conditions == {"hot": 2, "mig-empty": 1, "tool-hung": 1}
        said = "conditions: 2 hot, 1 mig-empty, 1 tool-hung (see llmgw ctl devices and nodes)"
        assert said in shown(status)

    def test_without_any_there_is_no_word_of_them(self) -> None:
        assert "conditions" not in shown(views.status(serving().state))

    def test_nodes_that_are_cordoned_or_being_emptied_are_counted(self) -> None:
        history = started(started(History()), "n2")
        history.write(e.NodeCordoned(node="n1")).write(e.NodeDrained(node="n2"))
        text = shown(views.status(history.state))
        assert "nodes: 2 up, 0 lost, 0 stopped, 1 cordoned, 1 draining" in text

    def test_replicas_that_stop_have_a_column_while_there_are_any(self) -> None:
        assert "STOPPING" not in shown(views.status(serving().state))
        history = serving()
        history.write(e.ReplicaRetired(term=1, at=8, replica="r1", reason="scaled down"))
        header, row = shown(views.status(history.state)).splitlines()[4:6]
        assert row[header.index("STOPPING") :].split()[0] == "1"


def test_in_the_log_they_are_told_on_one_line() -> None:
    history = told(HUNG, condition("hot", 1203, "91 °C"))
    summaries = [row.summary for row in views.events(history.records)]
    assert summaries[-1] == f"tool-hung ({HUNG.detail}), 2/mig3 hot (91 °C)"


def _with(out: Excluded) -> History:
    return started(History(), excluded=(out,))
