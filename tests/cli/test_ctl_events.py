"""`llmgw ctl events`: which records are shown, by what they are of and when they were written."""

from __future__ import annotations

import json

import pytest

from llmgw.core import events as e
from tests.cli.conftest import Ctl
from tests.views.history import History, failed, led, serving, started


def shown(ctl: Ctl, *words: str) -> list[int]:
    """Return the sequences of the records that are shown."""
    done = ctl("events", *words, "-o", "json")
    assert done.code == 0, done.err
    return [row["sequence"] for row in json.loads(done.out)]


def test_what_was_asked_for_is_shown(ctl: Ctl) -> None:
    """Of nine: two of a node, the lead, a catalog and its answer, a replica's four."""
    ctl.store(failed(serving()).messages)
    assert shown(ctl, "--type", "replica.*", "--node", "n1", "--limit", "3") == [7, 8, 9]
    assert shown(ctl, "--model", "tiny") == [4, 6, 7, 8, 9]
    assert shown(ctl, "--model", "tiny", "--since", "8") == [8, 9]
    assert shown(ctl, "--since", "3", "--until", "5") == [3, 4, 5]
    assert shown(ctl, "--since", "5", "--until", "3") == []
    assert shown(ctl, "--since", "1 hour ago", "--until", "0 seconds ago") == [*range(1, 10)]
    assert shown(ctl, "--until", "1 hour ago") == []


def test_what_was_rejected_can_be_chosen_too(ctl: Ctl) -> None:
    history = led(started(History())).garbage().garbage(b"[")
    void = e.CatalogAccepted(term=0, at=1, request=1)
    ctl.store(history.write(void).messages)
    assert shown(ctl, "--rejected") == [4, 5, 6]
    assert shown(ctl, "--rejected", "--type", "unreadable", "--since", "5") == [5]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is neither a sequence nor a time"),
        (("--until", "99"), "the log ends at sequence 0; 99 has not been written"),
        (("--follow", "--until", "3"), "--follow and --until do not go together"),
        (("--type", "replica.red"), "there is no type of event 'replica.red'; did you mean repl"),
        (("--type", "node.lots", "--follow"), "did you mean node.lost?"),
        (("--type", "pod.*", "--rejected"), "there is no type of event 'pod.*'; there are assign"),
    ],
)
def test_what_cannot_be_asked_for_is_told(ctl: Ctl, words: tuple[str, ...], said: str) -> None:
    done = ctl("events", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_type_that_only_a_newer_version_knows_is_found_where_the_log_holds_it(ctl: Ctl) -> None:
    sung = serving().messages[0]
    ctl.store([sung._replace(subject=sung.subject.replace("node.started", "node.sang"))])
    for wanted in ("node.sang", "node.sa*"):
        done = ctl("events", "--type", wanted, "-o", "json")
        (row,) = json.loads(done.out)
        assert (done.code, row["type"]) == (0, "node.sang")
        assert f"{wanted} is not known to this version" in done.err
