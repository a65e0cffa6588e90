"""The wire format: a golden file for everything that goes on the log, and back without a loss."""

from __future__ import annotations

import json
import os

import pytest

from llmgw import wire
from llmgw.core.events import EVENTS as KNOWN
from llmgw.core.events import Event
from tests.core import golden

MESSAGES = golden.messages()
REWRITE = bool(os.environ.get("LLMGW_REWRITE"))


def readable(message: wire.Outgoing) -> str:
    written = {
        "subject": message.subject,
        "message_id": message.message_id,
        "payload": json.loads(message.payload),
    }
    return json.dumps(written, indent=2, ensure_ascii=False) + "\n"


def test_every_event_type_has_an_example() -> None:
    assert {event.wire for event in golden.EVENTS} == KNOWN.keys()
    assert {path.stem for path in golden.FOLDER.glob("*.json")} == MESSAGES.keys() or REWRITE


@pytest.mark.parametrize("wire_type", sorted(MESSAGES))
def test_what_is_written_is_what_the_golden_file_says(wire_type: str) -> None:
    path = golden.FOLDER / f"{wire_type}.json"
    written = readable(MESSAGES[wire_type])
    if REWRITE:
        path.write_text(written, encoding="utf-8")
    assert written == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("event", golden.EVENTS, ids=lambda event: event.wire)
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    message = MESSAGES[event.wire]
    record = wire.decode(7, 8, message.subject, message.payload)
    assert record.body == event
    assert (record.sequence, record.time_ns, record.origin) == (7, 8, event.origin)
    assert record.node == ("gpu-1" if event.origin == "node" else "")


def test_a_command_comes_back_as_it_was() -> None:
    message = MESSAGES["assignments.set"]
    record = wire.decode(7, 8, message.subject, message.payload)
    assert (record.body, record.origin, record.node) == (golden.COMMAND, "command", "gpu-1")


def test_a_sample_comes_back_as_it_was() -> None:
    message = MESSAGES["node.sample"]
    assert wire.decode_sample(message.subject, message.payload) == golden.SAMPLE


def test_a_leader_s_heartbeat_comes_back_as_it_was() -> None:
    message = MESSAGES["controller.heartbeat"]
    assert wire.decode_leader_heartbeat(message.subject, message.payload) == golden.LEADER


def test_the_same_command_decided_again_has_the_same_message_id() -> None:
    again = wire.encode_command("main", golden.COMMAND, time="2027-01-01T00:00:00Z")
    assert again.message_id == MESSAGES["assignments.set"].message_id


def test_an_absent_value_has_no_key() -> None:
    payload = MESSAGES["node.inventory"].payload
    assert b"null" not in payload
