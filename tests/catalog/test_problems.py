"""The controller asks entries the same questions that the reading of a file asks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmgw.catalog.entries import Catalog, Entry
from llmgw.catalog.load import parse
from llmgw.catalog.problems import problems

GOOD = Entry(
    name="m",
    engine="vllm",
    classes=("h100-*",),
    memory_bytes=1 << 30,
    source="org/model",
    gpus=2,
    tp=2,
)


def test_what_a_file_may_say_the_log_may_say() -> None:
    text = """
models:
  - {name: a, engine: llama.cpp, source: ./a.gguf, class: cpu, memory: 1GiB, args: [-t, "2"]}
  - {name: b, engine: vllm, source: org/model, class: [h100-*, a100-80g], memory: 40GiB, tp: 4}
  - {name: c, engine: command, command: [serve, "{port}"], class: cpu, memory: 1GiB, replicas: 0}
"""
    assert problems(parse(text, "c.yaml", "/catalogs")) == ()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (replace(GOOD, name="a/b"), "name"),
        (replace(GOOD, name="a: b"), "name"),
        (replace(GOOD, engine="wllm"), "engine"),
        (replace(GOOD, classes=()), "class"),
        (replace(GOOD, memory_bytes=0), "memory"),
        (replace(GOOD, source=None), "source"),
        (replace(GOOD, gpus=3), "gpus"),
        (replace(GOOD, replicas=-1), "replicas"),
        (replace(GOOD, classes=("a100-80g-mig-1g.10gb",)), "tp"),
        (replace(GOOD, env={"HF_TOKEN": "abcdefghijklmnop"}), "env"),
        (replace(GOOD, args=("--port", "80")), "args"),
    ],
)
def test_a_wrong_field_is_named(wrong: Entry, field: str) -> None:
    found = problems(Catalog(models=(wrong,)))
    assert any(line.startswith(f"{wrong.name}: {field}: ") for line in found), found


def test_a_name_may_be_given_once() -> None:
    assert problems(Catalog(models=(GOOD, GOOD))) == ("m: name: is taken by an earlier entry",)
