"""Every message is a CloudEvent 1.0: its required attributes, their types, the rules for names.

Written from the text of the specification, version 1.0, with no library of ours or anybody's: what
"must" and "should" there say is what is asserted here, for each golden message.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.core import golden

EVENTS: dict[str, dict[str, Any]] = {
    name: json.loads(message.payload) for name, message in sorted(golden.messages().items())
}
REQUIRED = ("id", "source", "specversion", "type")
OPTIONAL = ("datacontenttype", "dataschema", "subject", "time")
EXTENSIONS = ("dataversion", "session", "number")

INTEGERS = range(-(2**31), 2**31)
"""The type Integer of an attribute: 32 bits with a sign."""

# RFC 3986, the characters of a URI reference, percent-encoding included.
URI_REFERENCE = re.compile(r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+")
# RFC 3339.
TIMESTAMP = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?"
    r"(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
)
MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9.+-]+")

each = pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
Event = dict[str, Any]


@each
def test_the_required_attributes_are_there_and_are_texts(event: Event) -> None:
    for name in REQUIRED:
        assert isinstance(event[name], str), name
        assert event[name], f"{name} must not be empty"
    assert event["specversion"] == "1.0"


@each
def test_no_attribute_is_there_that_is_neither_of_the_specification_nor_ours(event: Event) -> None:
    assert set(event) <= {*REQUIRED, *OPTIONAL, *EXTENSIONS, "data"}


@each
def test_names_are_short_and_of_lower_case_letters_and_digits(event: Event) -> None:
    for name in event:
        assert re.fullmatch(r"[a-z0-9]{1,20}", name), name


@each
def test_attributes_are_of_the_types_that_there_are(event: Event) -> None:
    for name in set(event) - {"data"}:
        value = event[name]
        assert isinstance(value, str | bool) or value in INTEGERS, (name, value)
        if isinstance(value, str):
            assert not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", value), name


@each
def test_the_source_is_a_reference_the_time_a_timestamp_and_the_content_a_media_type(
    event: Event,
) -> None:
    assert URI_REFERENCE.fullmatch(event["source"])
    assert TIMESTAMP.fullmatch(event["time"])
    assert MEDIA_TYPE.fullmatch(event["datacontenttype"])


@each
def test_the_data_is_of_the_content_type_that_is_said(event: Event) -> None:
    assert event["datacontenttype"] == "application/json"
    assert isinstance(event["data"], dict)
    assert "data_base64" not in event


@each
def test_the_type_says_whose_it_is(event: Event) -> None:
    assert re.fullmatch(r"llmgw(\.[a-z_]+)+", event["type"])


def test_source_and_id_together_name_one_event() -> None:
    pairs = [(event["source"], event["id"]) for event in EVENTS.values()]
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("size", [len(json.dumps(event).encode()) for event in EVENTS.values()])
def test_an_event_is_small_enough_to_be_passed_on(size: int) -> None:
    """Whoever forwards events should take 64 KiB; most of ours are far below."""
    assert size <= 64 * 1024


def test_the_patterns_here_can_fail() -> None:
    assert not URI_REFERENCE.fullmatch("/llmgw/a b")
    assert not URI_REFERENCE.fullmatch("/llmgw/ä")
    for wrong in ("2026-01-02", "2026-01-02 03:04:05Z", "2026-13-02T03:04:05Z", "1767323045"):
        assert not TIMESTAMP.fullmatch(wrong)
    assert 2**31 not in INTEGERS
