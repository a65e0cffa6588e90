"""Bytes from outside: whatever comes, `decode` answers with a record and never raises."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.fold import apply
from llmgw.core.records import Body, NewerVersion, UnknownType, Unreadable
from llmgw.errors import MalformedRecord, UsageError
from llmgw.testing.invariants import check, restored, snapshot
from tests.core import golden

STARTED = wire.encode_event(
    "c",
    e.NodeStarted(boot_id="b1", agent_version="1"),
    node="n1",
    session="s",
    number=1,
    time=golden.TIME,
)
SUBJECT = STARTED.subject


def read(payload: bytes, subject: str = SUBJECT) -> Body:
    return wire.decode(1, 1, subject, payload).body


def changed(**fields: object) -> bytes:
    """The payload of a started node with other envelope fields."""
    return json.dumps(json.loads(STARTED.payload) | fields).encode()


def reason(payload: bytes, subject: str = SUBJECT) -> str:
    body = read(payload, subject)
    assert isinstance(body, Unreadable), body
    return body.reason


NESTED: dict[str, Callable[[int], bytes]] = {
    "lists": lambda depth: b"[" * depth,
    "objects": lambda depth: b'{"a":' * depth,
    "in the data": lambda depth: changed(data={}).replace(b"{}", b'{"x":' + b"[" * depth),
    "closed": lambda depth: b"[" * depth + b"]" * depth,
    "after a string with brackets": lambda depth: b'["]]]]\\"]]]",' + b"[" * depth,
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("depth", [33, 1100, 2_000, 500_000])
def test_deep_nesting_is_refused(kind: str, depth: int) -> None:
    assert reason(NESTED[kind](depth))


def test_deep_nesting_is_refused_on_a_thread_with_a_small_stack() -> None:
    found: list[str] = []
    size = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: found.append(reason(b'{"a":' * 100_000)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    assert [why[:24] for why in found] == ["nested more than 32 deep"]


def test_brackets_in_strings_are_no_nesting() -> None:
    agent = changed(data={"boot_id": "[" * 5_000, "agent_version": '"]}\\' * 500})
    assert isinstance(read(agent), e.NodeStarted)


def test_a_string_that_never_ends_is_read_once() -> None:
    """Reading it once for each quote in it would take minutes, and the run would be ended."""
    assert reason(b"[" * 40 + b'"' + b'\\"' * 500_000)


def test_more_than_the_log_takes_is_not_read() -> None:
    assert "1048576 at most" in reason(changed(data={"boot_id": "b" * 2_000_000}))


def test_a_field_that_is_too_long_is_refused() -> None:
    assert "boot_id" in reason(changed(data={"boot_id": "b" * 70_000, "agent_version": "1"}))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"\xff\xfe\x00",
        b"not json",
        b"[]",
        b'"text"',
        b"{}",
        STARTED.payload[:-1],
        STARTED.payload + b"x",
        STARTED.payload.replace(b'"number":1', b'"number":NaN'),
        STARTED.payload.replace(b'"number":1', b'"number":Infinity'),
        STARTED.payload.replace(b'"number":1', b'"number":1e999'),
        STARTED.payload.replace(b'"number":1', b'"number":' + b"9" * 5_000),
        STARTED.payload.replace(b'"number":1', b'"number":' + b"9" * 20),
        STARTED.payload.replace(b'"number":1', b'"number":-1'),
        STARTED.payload.replace(b'"number":1', b'"number":1.5'),
        STARTED.payload.replace(b'"number":1', b'"number":"1"'),
        STARTED.payload.replace(b'"b1"', b'"\\ud800 alone"'),
        STARTED.payload.replace(b'"dataversion":1', b'"dataversion":0'),
        STARTED.payload.replace(b'"dataversion":1', b'"dataversion":-9007199254740993'),
        changed(specversion="2.0"),
        changed(session="s" * 300),
        changed(data=[]),
        changed(data={"boot_id": 7, "agent_version": "1"}),
    ],
)
def test_what_cannot_be_read_says_why_in_one_line(payload: bytes) -> None:
    why = reason(payload)
    assert why
    assert "\n" not in why
    assert len(why) <= 500


def test_of_a_key_that_comes_twice_the_last_wins() -> None:
    twice = STARTED.payload.replace(b'"number":1', b'"number":1,"number":5')
    assert wire.decode(1, 1, SUBJECT, twice).number == 5


def test_unknown_fields_are_passed_over() -> None:
    later = changed(data={"boot_id": "b1", "agent_version": "1", "colour": "green"})
    assert isinstance(read(later), e.NodeStarted)


@pytest.mark.parametrize(
    "source", ["/llmgw/c/node/n2", "/llmgw/other/node/n1", "/llmgw/c/controller", ""]
)
def test_a_writer_that_names_another_source_is_not_believed(source: str) -> None:
    assert "does not match the subject's '/llmgw/c/node/n1'" in reason(changed(source=source))


def test_a_type_that_is_not_the_subjects_is_not_believed() -> None:
    assert "does not match the subject's" in reason(changed(type="llmgw.node.stopped"))


def test_a_forged_source_of_an_older_version_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(wire.UPCASTS, ("node.started", 0), lambda data: data)
    assert "does not match" in reason(changed(dataversion=0, source="/llmgw/c/node/n2"))


@pytest.mark.parametrize(
    "subject",
    [
        "llmgw.v1.c.event.node.n1.controller.elected",
        "llmgw.v1.c.event.node.n1.catalog.applied",
        "llmgw.v1.c.event.operator.node.started",
        "llmgw.v1.c.event.node.n1.node.sang",
    ],
)
def test_a_type_under_a_subject_that_is_not_its_own_is_an_unknown_type(subject: str) -> None:
    assert isinstance(read(STARTED.payload, subject), UnknownType)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        ".",
        "other.v1.c.event.node.n1.node.started",
        "llmgw.v2.c.event.node.n1.node.started",
        "llmgw.v1.c.event.node.n1",
        "llmgw.v1.c.event.node..node.started",
        "llmgw.v1.c.event.node.*.node.started",
        f"llmgw.v1.c.event.node.{'n' * 64}.node.started",
        "llmgw.v1.c.event.stranger.n1.node.started",
        "llmgw.v1.c.command.n1.more",
        "llmgw.v1.c.command.>",
        "llmgw.v1.c.telemetry.n1",
    ],
)
def test_a_subject_that_is_not_llmgws_is_unreadable(subject: str) -> None:
    assert reason(STARTED.payload, subject) == "the subject is not one of llmgw's"


def test_a_newer_version_is_told_apart_even_when_it_has_another_shape() -> None:
    assert read(changed(dataversion=2, data={"boot": 7})) == NewerVersion("node.started", 2)


def test_an_older_version_is_upcast_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(data: dict[str, Any]) -> dict[str, Any]:
        return {"boot": data["b"]}

    def more(data: dict[str, Any]) -> dict[str, Any]:
        return {"boot_id": data["boot"], "agent_version": "old"}

    monkeypatch.setitem(wire.UPCASTS, ("node.started", -1), name)
    monkeypatch.setitem(wire.UPCASTS, ("node.started", 0), more)
    assert read(changed(dataversion=-1, data={"b": "b1"})) == e.NodeStarted(
        boot_id="b1", agent_version="old"
    )


@pytest.mark.parametrize("data", [{}, {"b": None}, {"b": []}, {"b": "text"}, {"b": 0}])
def test_an_older_version_that_is_malformed_is_unreadable(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def upcast(data: dict[str, Any]) -> dict[str, Any]:
        return {"boot_id": data["b"].pop(0), "agent_version": str(1 // data["b"])}

    monkeypatch.setitem(wire.UPCASTS, ("node.started", 0), upcast)
    assert reason(changed(dataversion=0, data=data))


def test_an_older_version_that_was_never_released_is_unreadable() -> None:
    assert "never released" in reason(changed(dataversion=0))


def test_a_sample_that_names_another_node_is_refused() -> None:
    message = golden.messages()["node.sample"]
    with pytest.raises(MalformedRecord, match="names source '/llmgw/main/node/gpu-1'"):
        wire.decode_sample("llmgw.v1.main.telemetry.gpu-2", message.payload)


def test_what_the_log_would_not_take_is_not_written() -> None:
    event = e.NodeStarted(boot_id="b" * 2_000_000, agent_version="1")
    with pytest.raises(MalformedRecord, match="1048576 at most"):
        wire.encode_event("c", event, node="n1", session="s", number=1, time=golden.TIME)


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a b", "ä", "n" * 64])
def test_a_name_that_is_no_token_of_a_subject_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="A-Z a-z 0-9 _ -"):
        wire.check_token(name, "node")


MESSAGES = sorted(golden.messages().values())
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.sampled_from(MESSAGES), st.binary(max_size=20), st.integers(0, 2_000))
def test_broken_bytes_never_raise_and_leave_a_sound_state(
    message: wire.Outgoing, noise: bytes, place: int
) -> None:
    payload = message.payload[:place] + noise + message.payload[place + len(noise) :]
    fold(message.subject, payload)


@given(st.sampled_from(MESSAGES), st.data())
def test_wrong_values_never_raise_and_leave_a_sound_state(
    message: wire.Outgoing, data: st.DataObject
) -> None:
    envelope = json.loads(message.payload)
    holder = data.draw(st.sampled_from([envelope, envelope["data"]]))
    holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(ANY_JSON)
    fold(message.subject, json.dumps(envelope).encode())


@given(st.text(), st.binary())
def test_any_subject_and_any_bytes_never_raise(subject: str, payload: bytes) -> None:
    fold(subject, payload)


def fold(subject: str, payload: bytes) -> None:
    """Decode and fold a message; what came of it can be stored and read again."""
    state = Cluster()
    apply(state, wire.decode(1, 1, subject, payload))
    check(state)
    stored = snapshot(state)
    assert msgspec.json.decode(stored, type=Cluster) == state
    assert snapshot(restored(stored)) == stored
