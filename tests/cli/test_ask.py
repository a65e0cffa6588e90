"""What an operator asks for: checked, recorded, answered; and with --dry-run only foreseen."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from llmgw.cli.ctl_ask import already, check
from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.errors import UsageError
from tests.cli.conftest import Ctl, arguments, environment
from tests.support.wait import until_sync
from tests.views.history import (
    History,
    assigned,
    entry,
    led,
    ready,
    served,
    serving,
    started,
    starting,
)

RETIRED = e.ReplicaRetired(term=1, at=8, replica="r1", reason="its entry changed")


def two_nodes() -> History:
    """One replica is ready on n1; n2 is free."""
    history = led(started(started(History()), "n2"))
    return ready(starting(assigned(served(history, entry()))))


def newest(ctl: Ctl) -> tuple[str, str, str]:
    (row,) = json.loads(ctl("events", "--limit", "1", "-o", "json").out)
    return row["origin"], row["type"], row["summary"]


class TestRecorded:
    @pytest.mark.parametrize(
        ("words", "type_", "said"),
        [
            (("scale", "tiny", "2"), "model.scaled", "tiny shall have 2 replicas"),
            (("delete", "tiny"), "model.deleted", "tiny shall be served no more"),
            (("cordon", "n1"), "node.cordoned", "nothing more shall be placed on n1"),
            (("drain", "n1"), "node.drained", "n1 shall be emptied"),
            (("restart", "r1"), "replica.restart_asked", "r1 shall be started afresh"),
        ],
    )
    def test_without_a_controller_the_request_is_in_the_log(
        self, ctl: Ctl, words: tuple[str, ...], type_: str, said: str
    ) -> None:
        done = ctl.store(two_nodes().messages)(*words, "--wait", "0")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(said)
        assert newest(ctl) == ("operator", type_, said)

    def test_what_is_so_already_is_not_asked_for_again(self, ctl: Ctl) -> None:
        ctl.store(two_nodes().write(e.NodeCordoned(node="n2")).messages)
        done = ctl("cordon", "n2", "-o", "json")
        assert json.loads(done.out) == {
            "answer": "already so",
            "reasons": ["n2 is cordoned already"],
        }
        assert ctl("uncordon", "n2", "--wait", "0").code == 0
        assert newest(ctl)[1] == "node.uncordoned"

    def test_what_a_controller_decides_on_it_is_the_answer(self, ctl: Ctl, tmp_path: Path) -> None:
        ctl.store(two_nodes().command(SetAssignments(node="n1", revision=1, term=1, at=9)).messages)
        process = subprocess.Popen(
            arguments("ctl", "scale", "tiny", "0", "--wait", "60", "-o", "json"),
            cwd=tmp_path,
            env=environment(tmp_path, **ctl.variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            asked = until_sync(lambda: _asked(ctl), 30, "the request is in the log")
            retired = e.ReplicaRetired(term=1, at=asked, replica="r1", reason="none are wanted")
            stop = SetAssignments(node="n1", revision=2, term=1, at=asked + 1)
            ctl.store(History("s2").write(retired).command(stop).messages)
            out, err = process.communicate(timeout=60)
        found = json.loads(out)
        assert process.returncode == 0, err
        assert (found["sequence"], found["answer"]) == (asked, "taken")
        assert found["decisions"] == ["r1 is to stop: none are wanted", "revision 2: run nothing"]


def _asked(ctl: Ctl) -> int:
    """Return the sequence of the request; 0 where it is not in the log yet."""
    rows = json.loads(ctl("events", "--type", "model.scaled", "-o", "json").out)
    return int(rows[0]["sequence"]) if rows else 0


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (e.ModelScaled(model="tinny", replicas=2), "no model 'tinny'; did you mean tiny?"),
        (e.ModelScaled(model="tiny", replicas=10**6), "1000000 replicas are too many; at most"),
        (e.ModelDeleted(model="other"), "no model 'other'; there are tiny"),
        (e.NodeDrained(node="node1"), "no node 'node1'; there are n1, n2"),
        (e.NodeCordoned(node="*"), "no node '*'; there are n1, n2"),
        (e.NodeUncordoned(node="\x1b[2J"), "no node '\\\\x1b[2J'"),
        (e.ReplicaRestartAsked(replica="r12"), "no replica 'r12'; did you mean r1?"),
    ],
)
def test_what_is_not_there_is_named_with_what_is_near(request_: e.Event, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(two_nodes().state, request_)
    assert said in str(caught.value)


def test_a_replica_that_is_to_stop_does_not_start_again() -> None:
    state = serving().write(RETIRED).state
    with pytest.raises(UsageError, match=r"r1 is to stop .its entry changed.: it will not start"):
        check(state, e.ReplicaRestartAsked(replica="r1"))


def test_a_model_of_a_catalog_that_waits_is_not_there_yet() -> None:
    state = started(History()).write(e.CatalogApplied(catalog=serving().state.catalog)).state
    with pytest.raises(UsageError, match=r"there are none\. A catalog still waits"):
        check(state, e.ModelScaled(model="tiny", replicas=1))


@pytest.mark.parametrize(
    ("before", "request_", "is_so"),
    [
        ((), e.ModelScaled(model="tiny", replicas=1), True),
        ((), e.ModelScaled(model="tiny", replicas=2), False),
        ((), e.NodeUncordoned(node="n1"), True),
        ((), e.NodeCordoned(node="n1"), False),
        ((e.NodeDrained(node="n1"),), e.NodeDrained(node="n1"), True),
        ((e.NodeDrained(node="n1"),), e.NodeCordoned(node="n1"), False),
        ((e.NodeCordoned(node="n1"),), e.NodeDrained(node="n1"), False),
        ((e.NodeCordoned(node="n1"),), e.NodeUncordoned(node="n1"), False),
        ((), e.ModelDeleted(model="tiny"), False),
        ((), e.ReplicaRestartAsked(replica="r1"), False),
    ],
)
def test_only_what_would_change_something_is_asked_for(
    before: tuple[e.Event, ...], request_: e.Event, is_so: bool
) -> None:
    history = two_nodes()
    for event in before:
        history.write(event)
    check(history.state, request_)
    assert (already(history.state, request_) is not None) is is_so


class TestForeseen:
    def test_a_drain_shows_where_everything_would_go_and_writes_nothing(self, ctl: Ctl) -> None:
        ctl.store(two_nodes().messages)
        (step,) = json.loads(ctl("drain", "n1", "--dry-run", "-o", "json").out)["steps"]
        assert (step["action"], step["instead_of"]) == ("move", "r1")
        assert step["before"] == [{"node": "n1", "devices": ["0"]}]
        assert step["after"] == [{"node": "n2", "devices": ["0"]}]
        assert newest(ctl)[1] == "replica.ready"

    def test_what_finds_no_place_is_a_no(self, ctl: Ctl) -> None:
        done = ctl.store(serving().messages)("drain", "n1", "--dry-run")
        assert done.code == 4
        assert done.out.splitlines()[1].split()[:3] == ["tiny", "cannot", "1"]
        assert done.out.splitlines()[-1] == "1 replica stays as it is"

    def test_what_is_not_there_cannot_be_foreseen(self, ctl: Ctl) -> None:
        done = ctl.store(serving().messages)("drain", "n2", "--dry-run")
        assert (done.code, done.out) == (2, "")
        assert done.err == "there is no node 'n2'; there are n1"
