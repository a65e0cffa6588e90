"""JSON Schemas and an AsyncAPI document of everything on the wire, generated from the types.

For programs in other languages: what a subscriber to the log gets, and what a catalog may hold.
`llmgw schemas` writes them and compares them; CI fails when `schemas/` is not what is said here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from llmgw.core.commands import SetAssignments
from llmgw.core.events import EVENTS
from llmgw.core.telemetry import NodeSample
from llmgw.engines.registry import ENGINES
from llmgw.errors import UsageError
from llmgw.wire import TYPE_PREFIX, Envelope, command_subject, prefix, telemetry_subject

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SUFFIX = ".schema.json"
ASYNCAPI = "asyncapi.yaml"

_ID = "urn:llmgw:schema:"


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


def _channels() -> list[_Channel]:
    cluster, node = "{cluster}", "{node}"
    found = [_Channel(SetAssignments, command_subject(cluster, node))]
    found.append(_Channel(NodeSample, telemetry_subject(cluster, node)))
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
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def _json(schema: Schema) -> str:
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


# --- what is on the wire -----------------------------------------------------------------------


def _message_schema(channel: _Channel) -> Schema:
    envelope: Any = Envelope[channel.type]  # type: ignore[name-defined]
    (reference,), definitions = msgspec.json.schema_components(
        [envelope], ref_template="#/$defs/{name}"
    )
    root = definitions.pop(reference["$ref"].rpartition("/")[2])
    root["properties"]["type"] = {"const": TYPE_PREFIX + channel.wire}
    root["properties"]["dataversion"] = {"const": channel.type.version}
    root["properties"]["time"] |= {"format": "date-time"}
    head = {
        "$schema": DIALECT,
        "$id": f"{_ID}{channel.wire}:{channel.type.version}",
        "title": channel.wire,
        "description": f"{channel.summary}\n\nA CloudEvent 1.0 on the subject {channel.address}.",
    }
    schema: Schema = {**root, **head, "$defs": dict(sorted(definitions.items()))}
    ordered = {key: schema[key] for key in (*head, *(k for k in schema if k not in head))}
    _clean_descriptions(ordered)
    return ordered


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
        "asyncapi": "3.0.0",
        "info": {
            "title": "llmgw",
            "version": "1",
            "description": (
                "Everything that llmgw writes to NATS. Events and commands are kept for ever in "
                "the JetStream stream LLMGW_{cluster}_LOG, in one total order; samples for a "
                "short while in LLMGW_{cluster}_TELEMETRY. Each is a CloudEvent 1.0 in JSON."
            ),
        },
        "defaultContentType": "application/cloudevents+json",
        "channels": {c.wire: _channel(c) for c in channels},
        "operations": {
            f"receive.{c.wire}": {
                "action": "receive",
                "channel": {"$ref": f"#/channels/{c.wire}"},
            }
            for c in channels
        },
        "components": {"messages": {c.wire: _message(c) for c in channels}},
    }


def _channel(channel: _Channel) -> Schema:
    about = {"cluster": "The cluster's name.", "node": "The node's name."}
    return {
        "address": channel.address,
        "parameters": {
            name: {"description": text}
            for name, text in about.items()
            if f"{{{name}}}" in channel.address
        },
        "messages": {channel.wire: {"$ref": f"#/components/messages/{channel.wire}"}},
    }


def _message(channel: _Channel) -> Schema:
    return {
        "name": TYPE_PREFIX + channel.wire,
        "summary": channel.summary.partition("\n\n")[0].replace("\n", " "),
        "payload": {
            "schemaFormat": "application/schema+json;version=draft-2020-12",
            "schema": {"$ref": f"./{channel.wire}{SUFFIX}"},
        },
    }


# --- what a person writes ------------------------------------------------------------------------


def _text(description: str, **rest: object) -> Schema:
    return {"type": "string", "description": description, **rest}


def _count(description: str, least: int = 1, **rest: object) -> Schema:
    return {"type": "integer", "minimum": least, "description": description, **rest}


def _texts(description: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _seconds(description: str, default: float) -> Schema:
    bounds = {"exclusiveMinimum": 0, "maximum": 7 * 86400}
    return {"type": "number", **bounds, "default": default, "description": description}


def _either(description: str, *choices: Schema) -> Schema:
    return {"anyOf": list(choices), "description": description}


_DEVICE_CLASS: Schema = {"type": "string", "pattern": r"^[a-z0-9*][a-z0-9*.+,-]{0,79}$"}
_SIZE: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\s*([KMGTkmgt][Ii]?)?[Bb]?$"}

CATALOG_FIELDS: Mapping[str, Schema] = {
    "name": _text("The model's name.", pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$"),
    "engine": _text("The program that serves it.", enum=sorted(ENGINES)),
    "class": _either(
        "The device class, or several in order of preference; `*` stands for anything.",
        _DEVICE_CLASS,
        {"type": "array", "items": _DEVICE_CLASS, "minItems": 1, "uniqueItems": True},
    ),
    "memory": _either(
        "What one replica needs on each of its devices, such as 16GiB, or a number of bytes.",
        _SIZE,
        {"type": "integer", "minimum": 2**20, "maximum": 2**50},
    ),
    "source": _text("A GGUF file, a folder, or a repository such as org/model."),
    "revision": _text("The branch, tag or commit of a repository."),
    "command": _texts("For the engine `command`: the program and its arguments."),
    "args": _texts("Further arguments of the engine."),
    "env": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "Environment variables; ${NAME} is taken from the agent's environment.",
    },
    "context": _count("The longest context in tokens."),
    "parallel": _count("How many sequences are served at once."),
    "replicas": _count("How many copies are wanted.", 0, default=1),
    "gpus": _count("Devices of one replica: tp times pp.", default=1),
    "tp": _count("Tensor parallel size.", default=1),
    "pp": _count("Pipeline parallel size.", default=1),
    "nodes": _count("How many nodes one replica spans.", default=1),
    "health": _text("The path that answers when the model can serve.", pattern="^/"),
    "start_seconds": _seconds("How long loading may take before it counts as failed.", 600),
    "stop_seconds": _seconds("How long it may take to end before it is killed.", 15),
}
"""Field of a catalog entry, as it is written in YAML, to its schema."""


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
        "properties": {"models": {"type": "array", "items": _entry_schema(), "minItems": 1}},
        "required": ["models"],
        "additionalProperties": False,
    }


def _entry_schema() -> Schema:
    required: Iterable[str] = ("name", "engine", "class", "memory")
    return {
        "type": "object",
        "properties": dict(CATALOG_FIELDS),
        "required": list(required),
        "additionalProperties": False,
    }
