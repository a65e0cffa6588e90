"""A command that an agent cannot read: refused once, and nothing is stopped or started for it."""

from __future__ import annotations

import json

import pytest

from llmgw import wire
from llmgw.core import stimuli as s
from llmgw.core.records import NewerVersion, Record, Unreadable
from tests.core import golden
from tests.core.agent import Agent, assignment

UNREAD = s.CommandUnreadable(sequence=50, revision=5, term=1, reason="no")
REFUSED = "publish command.refused revision 5: no"


def test_it_is_refused_and_what_runs_runs_on() -> None:
    agent = Agent().serving("r1")
    agent.when(UNREAD).then(REFUSED)
    assert agent.memory.parts["r1/0"].phase == "ready"


def test_it_is_refused_once_also_by_the_next_agent() -> None:
    agent = Agent().up().given(UNREAD)
    agent.when(UNREAD).then()
    agent.restarted().when(UNREAD).then()


def test_a_newer_agent_that_can_read_it_acts_upon_it() -> None:
    agent = Agent().up().given(UNREAD).restarted()
    agent.when(agent.command(assignment(), revision=5, sequence=50)).then(
        "publish replica.starting r1/0 attempt 1 on port 18100",
        "spawn r1/0 attempt 1 on port 18100",
        "publish command.done revision 5",
    )
    agent.when(UNREAD).then()


def test_the_same_place_in_another_log_is_another_command() -> None:
    Agent().up().given(UNREAD, s.LogReplaced()).when(UNREAD).then(REFUSED)


COMMAND = golden.messages()["assignments.set"]


def record(**fields: object) -> Record:
    payload = json.dumps(json.loads(COMMAND.payload) | fields).encode()
    return wire.decode(7, 8, COMMAND.subject, payload)


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({"data": {"node": "gpu-1"}}, Unreadable),
        ({"data": {}, "dataversion": 2}, NewerVersion),
        ({"data": {}, "dataversion": 0}, Unreadable),
    ],
)
def test_its_envelope_says_which_one_it_is(fields: dict[str, object], body: type) -> None:
    found = record(**fields)
    assert isinstance(found.body, body)
    assert wire.revision_and_term(found) == (8, 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"source": "/llmgw/main/operator"},
        {"type": "llmgw.assignments.get"},
        {"session": "s1"},
        {"session": "term-٣"},
        {"session": "term-" + "9" * 100},
        {"number": -1},
        {"number": 2**60},
    ],
)
def test_an_envelope_that_is_not_believed_is_not_answered(fields: dict[str, object]) -> None:
    assert wire.revision_and_term(record(data={}, **fields)) is None


def test_an_event_is_no_command() -> None:
    message = golden.messages()["node.started"]
    payload = message.payload.replace(b'"session":"s1"', b'"session":"term-3"')
    found = wire.decode(7, 8, message.subject, payload.replace(b'"boot_id"', b'"boot"'))
    assert isinstance(found.body, Unreadable)
    assert wire.revision_and_term(found) is None
