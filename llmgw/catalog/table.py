"""Every field of a catalog entry: the reader of its value, and what editors are told about it.

A new field is one line here. `validate` reads entries by it, `llmgw.schemas` makes
`catalog.schema.json` of it, and docs/catalog.md lists the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from llmgw.catalog import fields, shapes
from llmgw.catalog.classes import PATTERN
from llmgw.catalog.fields import Reader
from llmgw.catalog.rules import MOST_PRIORITY, MOST_REPLICAS, NAME
from llmgw.engines.registry import ENGINES

Schema = dict[str, Any]


class Field(NamedTuple):
    """One field: how its value is read, and its JSON Schema."""

    read: Reader
    schema: Schema


def _text(description: str, **rest: object) -> Schema:
    return {"type": "string", "description": description, **rest}


def _count(description: str, least: int = 1, **rest: object) -> Schema:
    return {"type": "integer", "minimum": least, "description": description, **rest}


def _texts(description: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _seconds(description: str, **rest: object) -> Schema:
    bounds = {"exclusiveMinimum": 0, "maximum": 7 * 86400}
    return {"type": "number", **bounds, "description": description, **rest}


def _either(description: str, *choices: Schema) -> Schema:
    return {"anyOf": list(choices), "description": description}


def _mapping(description: str, of: Schema) -> Schema:
    return {"type": "object", "additionalProperties": of, "description": description}


def _object(description: str, properties: Mapping[str, Schema], **rest: object) -> Schema:
    shape = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**shape, "description": description, **rest}


_CLASS: Schema = {"type": "string", "pattern": f"^{PATTERN}$"}
_SIZE: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\s*([KMGTkmgt][Ii]?)?[Bb]?$"}
_CACHE_DTYPES = {"enum": list(dict.fromkeys(t for e in ENGINES.values() for t in e.cache_dtypes))}
_VALUE = _either(
    "A text, or where the agent finds the value when it starts the engine.",
    {"type": "string"},
    _object(
        "From the agent's environment.",
        {"from_env": _text("The name of the variable.", pattern="^[A-Za-z_][A-Za-z0-9_]*$")},
        required=["from_env"],
    ),
    _object(
        "From a file on the node.",
        {"from_file": _text("Its absolute path.", pattern="^/")},
        required=["from_file"],
    ),
)
_LABELS = {
    "require": "Only nodes with all of these.",
    "prefer": "Rather nodes with these.",
    "avoid": "No node with any of these.",
}

FIELDS: Mapping[str, Field] = {
    "name": Field(
        fields.read_name,
        _text("The model's name: what clients ask for.", pattern=f"^{NAME.pattern}$"),
    ),
    "engine": Field(
        fields.read_text, _text("The program that serves the model.", enum=sorted(ENGINES))
    ),
    "class": Field(
        fields.read_classes,
        _either(
            "The device class, or several in order of preference; `*` stands for anything.",
            _CLASS,
            {"type": "array", "items": _CLASS, "minItems": 1, "uniqueItems": True},
        ),
    ),
    "memory": Field(
        fields.read_memory,
        _either(
            "What one replica needs on each of its devices, such as 16GiB, or a number of bytes. "
            "Left out, it is estimated from the model's files, where these can be read.",
            _SIZE,
            {"type": "integer", "minimum": 2**20, "maximum": 2**50},
        ),
    ),
    "source": Field(
        fields.read_text, _text("A GGUF file, a folder, or a repository such as org/model.")
    ),
    "revision": Field(fields.read_text, _text("The branch, tag or commit of a repository.")),
    "command": Field(
        fields.read_texts, _texts("For the engine `command`: the program and its arguments.")
    ),
    "args": Field(fields.read_texts, _texts("Further arguments of the engine.")),
    "env": Field(shapes.read_environment, _mapping("The engine's environment variables.", _VALUE)),
    "context": Field(fields.read_count, _count("The longest context of one request, in tokens.")),
    "parallel": Field(fields.read_count, _count("How many requests are served at once.")),
    "kv_cache_dtype": Field(
        shapes.read_cache_dtype,
        _either(
            "The type of the KV cache, in the engine's own words, or of its keys and values.",
            _CACHE_DTYPES,
            _object("Each half by itself.", {"key": _CACHE_DTYPES, "value": _CACHE_DTYPES}),
        ),
    ),
    "gpu_memory_fraction": Field(
        fields.read_fraction,
        {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "description": "The part of a device that vLLM or SGLang takes, instead of `memory`.",
        },
    ),
    "replicas": Field(
        fields.read_count_or_none,
        _count("How many copies are wanted.", 0, maximum=MOST_REPLICAS, default=1),
    ),
    "gpus": Field(
        fields.read_count, _count("Devices of one replica, over all its nodes: tp x pp.", default=1)
    ),
    "tp": Field(
        fields.read_count, _count("Tensor parallel size: devices that share a layer.", default=1)
    ),
    "pp": Field(
        fields.read_count, _count("Pipeline parallel size: stages of whole layers.", default=1)
    ),
    "nodes": Field(
        fields.read_count, _count("How many nodes one replica spans; it divides `pp`.", default=1)
    ),
    "nvlink": Field(
        fields.choice_of("require", "prefer", "ignore"),
        _text(
            "Whether the devices of a group must share one NVLink domain.",
            enum=["require", "prefer", "ignore"],
            default="prefer",
        ),
    ),
    "share": Field(
        fields.read_truth,
        {
            "type": "boolean",
            "default": False,
            "description": "Allows other replicas on the same devices, as far as memory goes.",
        },
    ),
    "policy": Field(
        fields.choice_of("spread", "pack"),
        _text(
            "`spread` puts replicas on different nodes where it can; `pack` fills nodes up.",
            enum=["spread", "pack"],
            default="spread",
        ),
    ),
    "labels": Field(
        shapes.read_labels,
        _object(
            "What the labels of a node must be, should be and must not be.",
            {kind: _mapping(said, {"type": "string"}) for kind, said in _LABELS.items()},
        ),
    ),
    "priority": Field(
        fields.read_signed,
        {
            "type": "integer",
            "minimum": -MOST_PRIORITY,
            "maximum": MOST_PRIORITY,
            "default": 0,
            "description": "Of two models that do not fit both, the higher one runs.",
        },
    ),
    "health": Field(
        fields.read_path, _text("The path that answers when the model can serve.", pattern="^/")
    ),
    "start_seconds": Field(
        fields.read_seconds,
        _seconds("How long loading may take before it counts as failed.", default=600),
    ),
    "stop_seconds": Field(
        fields.read_seconds,
        _seconds("How long it may take to end before it is killed.", default=15),
    ),
    "liveness_seconds": Field(
        fields.read_seconds,
        _seconds(
            "How long a ready engine may fail its health path, or have requests and get on with "
            "none of them, before it is restarted."
        ),
    ),
}
"""Field of a catalog entry, as it is written in YAML, to what is known of it. In the order of the
documentation."""
