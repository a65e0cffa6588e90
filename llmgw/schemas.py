"""JSON Schemas and an AsyncAPI document of everything on the wire, generated from the types.

For programs in other languages: what a subscriber to the log gets, and what a catalog may hold.
`llmgw schemas` writes them and compares them; CI fails when `schemas/` is not what is said here,
or when something that was released (`schemas/released/`) would break.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec
import yaml

from llmgw.catalog.draft import REQUIRED
from llmgw.catalog.table import FIELDS
from llmgw.compatibility import Schema, breaks, parsed
from llmgw.core.commands import SetAssignments
from llmgw.core.events import EVENTS
from llmgw.core.telemetry import ControllerHeartbeat, NodeHeartbeat, NodeSample
from llmgw.core.values import MAX_INTEGER
from llmgw.errors import UsageError
from llmgw.files import read_regular
from llmgw.views import VIEWS
from llmgw.wire import (
    SEQUENCE_HEADER,
    TYPE_PREFIX,
    UPCASTS,
    Envelope,
    command_subject,
    heartbeat_subject,
    leader_heartbeat_subject,
    prefix,
    telemetry_subject,
    view_subject,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SUFFIX = ".schema.json"
ASYNCAPI = "asyncapi.yaml"

_ID = "urn:llmgw:schema:"


_VIEW = "view."
_MULTI_FORMAT = "application/schema+json;version=draft-2020-12"


class _Channel(NamedTuple):
    """One type on the wire: the subject that carries it, with its variable tokens in braces."""

    type: type[Any]
    address: str

    @property
    def wire(self) -> str:
        return str(self.type.wire)

    @property
    def summary(self) -> str:
        return inspect.cleandoc(self.type.__doc__ or "")


def documents() -> dict[str, str]:
    """Return every document: file name to text, always the same for the same types."""
    found = {f"{c.wire}{SUFFIX}": _json(_message_schema(c)) for c in _channels()}
    found |= {f"{_VIEW}{name}{SUFFIX}": _json(_view_schema(name)) for name in VIEWS}
    found[f"catalog{SUFFIX}"] = _json(_catalog_schema())
    found[ASYNCAPI] = yaml.safe_dump(_asyncapi(), sort_keys=False, allow_unicode=True, width=100)
    return dict(sorted(found.items()))


def export(folder: Path) -> list[str]:
    """Write all documents into `folder`, remove outdated ones, and return what changed.

    Raises `UsageError` when the folder cannot be written.
    """
    drift = {*_superfluous(folder)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in drift:
            (folder / name).unlink()
        for name, text in documents().items():
            if _read(folder / name) != text:
                (folder / name).write_text(text, encoding="utf-8")
                drift.add(name)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from error
    return sorted(drift)


def check(folder: Path) -> list[str]:
    """Return one line for each document in `folder` that is missing, changed or superfluous."""
    lines = [f"{name}: superfluous: no type is named so" for name in _superfluous(folder)]
    for name, text in documents().items():
        found = _read(folder / name)
        if found is None:
            lines.append(f"{name}: missing")
        elif found != text:
            lines.append(f"{name}: changed")
    return sorted(lines)


def compare(folder: Path) -> list[str]:
    """Return one line for each thing that programs written for the schemas in `folder` would miss.

    `folder` is what an older version exported. Raises `UsageError` when it holds no schemas.
    """
    texts = {path.name: _read(path) or "" for path in sorted(folder.glob(f"*{SUFFIX}"))}
    if not texts:
        raise UsageError(f"{folder}: holds no schemas: name a folder that `schemas export` wrote")
    try:
        older = parsed(texts, SUFFIX)
    except msgspec.DecodeError as error:
        raise UsageError(f"{folder}: a schema in it cannot be read: {error}") from error
    return breaks(older, parsed(documents(), SUFFIX), UPCASTS)


def _channels() -> list[_Channel]:
    cluster, node = "{cluster}", "{node}"
    found = [_Channel(SetAssignments, command_subject(cluster, node))]
    found.append(_Channel(NodeSample, telemetry_subject(cluster, node)))
    found.append(_Channel(NodeHeartbeat, heartbeat_subject(cluster, node)))
    found.append(_Channel(ControllerHeartbeat, leader_heartbeat_subject(cluster)))
    for wire, event in EVENTS.items():
        writer = f"node.{node}" if event.origin == "node" else event.origin
        found.append(_Channel(event, f"{prefix(cluster)}.event.{writer}.{wire}"))
    return sorted(found, key=lambda channel: channel.wire)


def _superfluous(folder: Path) -> Iterator[str]:
    """Yield the names of schemas that llmgw wrote once and does not know any more."""
    known = documents()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if path.name not in known and f'"{_ID}' in (_read(path) or ""):
            yield path.name


def _read(path: Path) -> str | None:
    try:
        return read_regular(path).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: cannot be read: {why}") from error


def _json(schema: Schema) -> str:
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


# --- what is on the wire -----------------------------------------------------------------------


def _message_schema(channel: _Channel) -> Schema:
    root, definitions = _components(Envelope[channel.type])  # type: ignore[name-defined]
    root["properties"]["type"] = {"const": TYPE_PREFIX + channel.wire}
    root["properties"]["dataversion"] = {"const": channel.type.version}
    root["properties"]["time"] |= {"format": "date-time"}
    about = f"{channel.summary}\n\nA CloudEvent 1.0 on the subject {channel.address}."
    return _document(channel.wire, channel.type.version, about, root, definitions)


def _view_schema(view: str) -> Schema:
    """What `ctl VIEW -o json` prints and the endpoint of the view answers."""
    shown: Any = get_type_hints(VIEWS[view])["return"]
    root, definitions = _components(shown)
    about = f"{inspect.getdoc(VIEWS[view])}\n\nThe answer on the subject {_view_address(view)}."
    return _document(_VIEW + view, 1, about, root, definitions)


def _components(described: Any) -> tuple[Schema, Schema]:  # noqa: ANN401 -- any type form
    """Return the schema of a type, and the definitions that it refers to."""
    (root,), definitions = msgspec.json.schema_components(
        [described], ref_template="#/$defs/{name}"
    )
    if "$ref" in root:
        root = definitions.pop(root["$ref"].rpartition("/")[2])
    return root, definitions


def _document(title: str, version: int, about: str, root: Schema, definitions: Schema) -> Schema:
    head = {
        "$schema": DIALECT,
        "$id": f"{_ID}{title}:{version}",
        "title": title,
        "description": about,
    }
    body = {key: value for key, value in root.items() if key not in head}
    schema: Schema = {**head, **body, "$defs": dict(sorted(definitions.items()))}
    _clean_descriptions(schema)
    return schema


def _clean_descriptions(schema: object) -> None:
    """Take the source's indentation out of docstrings, which some Pythons leave in."""
    if isinstance(schema, dict):
        if isinstance(schema.get("description"), str):
            schema["description"] = inspect.cleandoc(schema["description"])
        for inner in schema.values():
            _clean_descriptions(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _clean_descriptions(inner)


def _asyncapi() -> Schema:
    channels = _channels()
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "llmgw",
            "version": "1",
            "description": (
                "Everything that llmgw writes to NATS, from the side of a program that reads it. "
                "Events and commands are kept for ever in the JetStream stream "
                "LLMGW_{cluster}_LOG, in one total order; samples for a short while in "
                "LLMGW_{cluster}_TELEMETRY; heartbeats in none. Each is a CloudEvent 1.0 in JSON. "
                "Views are asked "
                "for: a controller answers what `llmgw ctl VIEW -o json` prints."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/cloudevents+json",
        "servers": {"nats": _server()},
        "channels": {c.wire: _channel(c) for c in channels}
        | {key: made for view in VIEWS for key, made in _view_channels(view).items()},
        "operations": {f"receive.{c.wire}": _receive(c.wire) for c in channels}
        | {f"ask.{_VIEW}{view}": _ask(view) for view in VIEWS},
        "components": {
            "messages": {c.wire: _message(c) for c in channels}
            | {f"{_VIEW}{view}": _answer(view) for view in VIEWS}
            | {"ask": _question()},
        },
    }


def _server() -> Schema:
    return {
        "host": "{host}:{port}",
        "protocol": "nats",
        "description": (
            "A nats-server with JetStream, or a cluster of them. `llmgw up` brings one along and "
            "writes its address to endpoint.json in the data folder."
        ),
        "variables": {
            "host": {"default": "127.0.0.1", "description": "Where the server listens."},
            "port": {"default": "4222", "description": "On which port."},
        },
    }


def _reference(*path: str) -> Schema:
    return {"$ref": "/".join(("#", *path))}


def _receive(wire: str) -> Schema:
    return {"action": "receive", "channel": _reference("channels", wire)}


def _channel(channel: _Channel) -> Schema:
    about = {"cluster": "The cluster's name.", "node": "The node's name."}
    return {
        "address": channel.address,
        "parameters": {
            name: {"description": text}
            for name, text in about.items()
            if f"{{{name}}}" in channel.address
        },
        "messages": {channel.wire: _reference("components", "messages", channel.wire)},
    }


def _message(channel: _Channel) -> Schema:
    return {
        "name": TYPE_PREFIX + channel.wire,
        "summary": _first_paragraph(channel.summary),
        "payload": _payload(channel.wire),
    }


def _payload(name: str) -> Schema:
    return {"schemaFormat": _MULTI_FORMAT, "schema": {"$ref": f"./{name}{SUFFIX}"}}


def _first_paragraph(text: str) -> str:
    return text.partition("\n\n")[0].replace("\n", " ")


def _view_address(view: str) -> str:
    return view_subject("{cluster}", view)


def _view_channels(view: str) -> Schema:
    answer = _VIEW + view
    return {
        f"ask.{answer}": {
            "address": _view_address(view),
            "parameters": {"cluster": {"description": "The cluster's name."}},
            "messages": {"ask": _reference("components", "messages", "ask")},
        },
        f"answer.{answer}": {
            "address": None,  # the inbox that the question names
            "messages": {answer: _reference("components", "messages", answer)},
        },
    }


def _ask(view: str) -> Schema:
    ask, answer = f"ask.{_VIEW}{view}", f"answer.{_VIEW}{view}"
    return {
        "action": "send",
        "channel": _reference("channels", ask),
        "messages": [_reference("channels", ask, "messages", "ask")],
        "reply": {
            "channel": _reference("channels", answer),
            "messages": [_reference("channels", answer, "messages", _VIEW + view)],
        },
    }


def _question() -> Schema:
    sequence = {"type": "integer", "minimum": 0, "maximum": MAX_INTEGER}
    sequence["description"] = "Answer once the log has been folded up to this sequence."
    node = {"type": "string", "description": "Only what is on this node; not of `status`."}
    return {
        "name": "ask",
        "summary": "Nothing, or an object that says how new and of which node.",
        "contentType": "application/json",
        "payload": {
            "type": "object",
            "properties": {"sequence": sequence, "node": node},
            "additionalProperties": False,
        },
    }


def _answer(view: str) -> Schema:
    return {
        "name": _VIEW + view,
        "summary": _first_paragraph(inspect.getdoc(VIEWS[view]) or ""),
        "contentType": "application/json",
        "headers": {
            "type": "object",
            "properties": {
                SEQUENCE_HEADER: {
                    "type": "string",
                    "description": "The sequence up to which the log was folded for the answer.",
                },
                "Nats-Service-Error-Code": {
                    "type": "string",
                    "description": "There instead of an answer: a number as HTTP knows it.",
                },
                "Nats-Service-Error": {
                    "type": "string",
                    "description": "What went wrong, and what to do.",
                },
            },
        },
        "payload": _payload(_VIEW + view),
    }


# --- what a person writes ------------------------------------------------------------------------


def _catalog_schema() -> Schema:
    return {
        "$schema": DIALECT,
        "$id": f"{_ID}catalog:1",
        "title": "catalog",
        "description": (
            "The models to serve, as a YAML file. `llmgw catalog check` knows more rules than "
            "a schema can say."
        ),
        "type": "object",
        "properties": {"models": {"type": "array", "items": _entry_schema()}},
        "required": ["models"],
        "additionalProperties": False,
    }


def _entry_schema() -> Schema:
    return {
        "type": "object",
        "properties": {name: field.schema for name, field in FIELDS.items()},
        "required": [*REQUIRED],
        "additionalProperties": False,
    }
