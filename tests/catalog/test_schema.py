"""What editors are told about a catalog is what the readers take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw.catalog.draft import REQUIRED, ModelFacts, written
from llmgw.catalog.entries import Entry
from llmgw.catalog.report import Report
from llmgw.catalog.table import FIELDS
from llmgw.catalog.tree import Pairs, read_tree
from llmgw.catalog.validate import check_text

GOOD = {
    "name": ["llama-3.1-8b", "a"],
    "engine": ["vllm", "llama.cpp"],
    "class": ["a100-80g", "'*'", "[h100-*, cpu]"],
    "memory": ["16GiB", "1.5 gib", "80GB", "17179869184"],
    "source": ["org/m"],
    "revision": ["main"],
    "command": ["[serve, '{port}']"],
    "args": ["[]", "[--a, b]"],
    "env": ["{}", "{A: b}", "{A: {from_env: B}}", "{A: {from_file: /c}}"],
    "context": ["1", "131072"],
    "parallel": ["8"],
    "kv_cache_dtype": ["fp8", "{key: q8_0}", "{key: q8_0, value: f16}"],
    "gpu_memory_fraction": ["0.9", "1"],
    "replicas": ["0", "3"],
    "gpus": ["8"],
    "tp": ["8"],
    "pp": ["2"],
    "nodes": ["2"],
    "nvlink": ["require", "prefer", "ignore"],
    "share": ["true", "false"],
    "policy": ["spread", "pack"],
    "labels": ["{}", "{require: {a: b}, prefer: {c: d}, avoid: {e: f}}"],
    "priority": ["-5", "0", "1000"],
    "health": ["/health"],
    "start_seconds": ["600", "2.5"],
    "stop_seconds": ["15"],
    "liveness_seconds": ["30"],
}
BAD = {
    "name": ["A", "a/b", "[a]", "''"],
    "class": ["A100", "[]", "[cpu, cpu]", "{a: b}"],
    "memory": ["lots", "-1GiB", "[1]", "1"],
    "env": ["[a]", "{A: {from_env: [b]}}", "{A: {from_env: b, from_file: /c}}", "{A: {x: y}}"],
    "context": ["0", "-1", "1.5", "[1]", "word"],
    "kv_cache_dtype": ["[fp8]", "{k: fp8}"],
    "gpu_memory_fraction": ["word", "[1]"],
    "replicas": ["-1", "'1'"],
    "nvlink": ["yes", "[require]"],
    "share": ["'true'", "1"],
    "policy": ["sprad"],
    "labels": ["[a]", "{requires: {a: b}}", "{require: [a]}"],
    "priority": ["1.5", "word"],
    "health": ["health"],
    "start_seconds": ["0", "-1", "word"],
}


def fits(schema: dict[str, Any], value: Any) -> bool:  # noqa: ANN401 -- any YAML
    """Judge a value by the part of JSON Schema that the catalog's schema uses."""
    if "anyOf" in schema:
        return any(fits(choice, value) for choice in schema["anyOf"])
    if "enum" in schema and value not in schema["enum"]:
        return False
    match schema.get("type"):
        case "string":
            return isinstance(value, str) and bool(re.search(schema.get("pattern", ""), value))
        case "boolean":
            return isinstance(value, bool)
        case "integer" | "number" as kind:
            is_number = isinstance(value, int if kind == "integer" else int | float)
            return is_number and not isinstance(value, bool) and within(schema, value)
        case "array":
            return isinstance(value, list) and fits_list(schema, value)
        case "object":
            return isinstance(value, dict) and fits_object(schema, value)
    return True


def fits_list(schema: dict[str, Any], values: list[object]) -> bool:
    repeated = len({*map(str, values)}) < len(values)
    return (
        len(values) >= schema.get("minItems", 0)
        and not (repeated and schema.get("uniqueItems"))
        and all(fits(schema["items"], value) for value in values)
    )


def within(schema: dict[str, Any], value: float) -> bool:
    return schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    ) and not value <= schema.get("exclusiveMinimum", value - 1)


def fits_object(schema: dict[str, Any], value: dict[str, object]) -> bool:
    known, others = schema.get("properties", {}), schema["additionalProperties"]
    return set(schema.get("required", ())) <= value.keys() and all(
        fits(known.get(key, others), inner) if known.get(key, others) else False
        for key, inner in value.items()
    )


def reads(field: str, text: str) -> bool:
    """Whether the field's own reader takes the value."""
    report = Report()
    root = read_tree(f"{field}: {text}\n", report)
    assert isinstance(root, Pairs)
    return FIELDS[field].read(root.pairs[field][1], field, report) is not None


@pytest.mark.parametrize(("field", "text"), [(f, text) for f in GOOD for text in GOOD[f]])
def test_what_a_reader_takes_an_editor_takes(field: str, text: str) -> None:
    assert reads(field, text)
    assert fits(FIELDS[field].schema, yaml.safe_load(text))


@pytest.mark.parametrize(("field", "text"), [(f, text) for f in BAD for text in BAD[f]])
def test_what_a_reader_refuses_an_editor_marks(field: str, text: str) -> None:
    assert not reads(field, text)
    assert not fits(FIELDS[field].schema, yaml.safe_load(text))


def test_every_field_has_an_example_here_and_a_description() -> None:
    assert list(GOOD) == list(FIELDS)
    assert all(field.schema["description"].endswith(".") for field in FIELDS.values())
    assert set(REQUIRED) <= set(FIELDS)


def test_every_attribute_of_an_entry_has_a_field() -> None:
    full = Entry(
        name="m",
        engine="vllm",
        classes=("cpu",),
        memory_bytes=1,
        source="s",
        revision="r",
        context=1,
        parallel=1,
        health_path="/",
        liveness_seconds=1,
        gpu_memory_fraction=1,
        cache_key_dtype="fp8",
        cache_value_dtype="fp8",
    )
    assert set(written(full)) - set(FIELDS) == {"memory_estimated"}
    assert set(FIELDS) - set(written(full)) == set()


def test_the_documentation_lists_every_field_and_its_example_is_valid() -> None:
    text = (Path(__file__).parents[2] / "docs" / "catalog.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", text.split("## Devices")[0], re.MULTILINE)
    assert sorted(rows) == sorted(FIELDS)
    (example, _) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    facts = ModelFacts(memory_bytes=2**30)
    found = check_text(example, "docs/catalog.md", "/srv", look=lambda _entry: facts)
    assert (found.problems, len(found.catalog.models)) == ((), 2)
