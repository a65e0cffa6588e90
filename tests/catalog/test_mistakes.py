"""Every mistake gets a line that says where it is and what to write instead."""

from __future__ import annotations

import pytest

from llmgw.catalog.load import parse
from llmgw.errors import CatalogError

GOOD = {
    "name": "m",
    "engine": "vllm",
    "class": "a100-80g",
    "memory": "60GiB",
    "source": "org/model",
}


def catalog(**changes: str | None) -> str:
    """A catalog with one entry: one field a line, the first in line 2. `None` leaves one out."""
    fields = {**GOOD, **changes}
    lines = [f"{key}: {value}" for key, value in fields.items() if value is not None]
    return "models:\n  - " + "\n    ".join(lines) + "\n"


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(CatalogError) as caught:
        parse(text, "c.yaml", "/catalogs")
    return caught.value.problems


TEN_MISTAKES = """\
models:
  - name: Llama 8B
    engine: vlm
    class: A100
    memory: 16
    source: org/model
    replicas: -1
  - name: second
    engine: llama.cpp
    class: a100-80g-mig-1g.10gb
    memory: 9GiB
    source: models/second.gguf
    tp: 2
    args: --flash-attn on
    replcias: 3
  - name: third
    engine: vllm
    memory: 9GiB
    class: cpu
    source: org/third
    args: [--port=80]
    env:
      HF_TOKEN: abcdef
"""


def test_ten_mistakes_give_ten_lines_in_the_order_of_the_file() -> None:
    found = problems_of(TEN_MISTAKES)
    assert [problem.split(": ")[:2] for problem in found] == [
        ["c.yaml:2", "name"],
        ["c.yaml:3", "engine"],
        ["c.yaml:4", "class"],
        ["c.yaml:5", "memory"],
        ["c.yaml:7", "replicas"],
        ["c.yaml:13", "tp"],
        ["c.yaml:14", "args"],
        ["c.yaml:15", "replcias"],
        ["c.yaml:21", "args"],
        ["c.yaml:22", "env"],
    ]


@pytest.mark.parametrize(
    ("changes", "line", "field", "said"),
    [
        ({"name": None}, 2, "name", "missing"),
        ({"engine": None}, 2, "engine", "llama.cpp, vllm, sglang, command"),
        ({"class": None}, 2, "class", "missing"),
        ({"memory": None}, 2, "memory", "16GiB"),
        ({"source": None}, 2, "source", "missing"),
        ({"engine": "lama.cpp"}, 3, "engine", "did you mean llama.cpp?"),
        ({"name": "../etc"}, 2, "name", "a-z"),
        ({"name": "a;rm"}, 2, "name", "a-z"),
        ({"name": "a.>"}, 2, "name", "a-z"),
        ({"name": "x" * 64}, 2, "name", "1 to 63"),
        ({"name": "[a]"}, 2, "name", "not a list"),
        ({"class": "A100"}, 4, "class", "lower case"),
        ({"class": "[]"}, 4, "class", "is empty"),
        ({"class": "[cpu, cpu]"}, 4, "class", "twice"),
        ({"memory": "16"}, 5, "memory", "16GiB"),
        ({"memory": "16G"}, 5, "memory", "16GiB, 900MiB"),
        ({"memory": "lots"}, 5, "memory", "must be a size"),
        ({"memory": "5000TiB"}, 5, "memory", "more than any device"),
        ({"memory": "-1GiB"}, 5, "memory", "must be a size"),
        ({"replicas": "-1"}, 7, "replicas", "at least 0"),
        ({"replicas": "two"}, 7, "replicas", "whole number"),
        ({"replicas": '"2"'}, 7, "replicas", "without quotes"),
        ({"replicas": "1.5"}, 7, "replicas", "whole number"),
        ({"replicas": "010"}, 7, "replicas", "whole number"),
        ({"replicas": "1_000"}, 7, "replicas", "whole number"),
        ({"replicas": "0x10"}, 7, "replicas", "whole number"),
        ({"replicas": ""}, 7, "replicas", "no value"),
        ({"gpus": "0"}, 7, "gpus", "at least 1"),
        ({"context": "9" * 30}, 7, "context", "whole number"),
        ({"health": "health"}, 7, "health", "/health"),
        ({"start_seconds": "10m"}, 7, "start_seconds", "seconds"),
        ({"stop_seconds": "0"}, 7, "stop_seconds", "above 0"),
        ({"args": "--a b"}, 7, "args", "write a list, such as [--a, b]"),
        ({"args": "{a: b}"}, 7, "args", "must be a list"),
        ({"args": "[[a]]"}, 7, "args[0]", "one text"),
        ({"env": "[a]"}, 7, "env", "mapping"),
        ({"env": "{A-B: c}"}, 7, "env", "no name of an environment variable"),
        ({"tensor_parallel": "2"}, 7, "tensor_parallel", "did you mean `tp`?"),
        ({"vram": "2GiB"}, 7, "vram", "did you mean `memory`?"),
        ({"zzz": "2"}, 7, "zzz", "there are name, engine"),
        ({"<<": "{a: b}"}, 7, "<<", "a merge is not read"),
    ],
)
def test_a_wrong_field_is_named_with_its_line_and_what_to_write(
    changes: dict[str, str | None], line: int, field: str, said: str
) -> None:
    (problem,) = problems_of(catalog(**changes))
    assert problem.startswith(f"c.yaml:{line}: {field}: ")
    assert said in problem


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"gpus": "4", "tp": "8"}, "gpus", "tp 8 x pp 1 = 8"),
        ({"gpus": "4", "tp": "2", "pp": "4"}, "gpus", "tp 2 x pp 4 = 8"),
        ({"nodes": "2", "tp": "8", "pp": "3"}, "nodes", "multiple of 2"),
        ({"nodes": "2", "pp": "3"}, "nodes", "multiple of 2"),
        ({"nodes": "2", "gpus": "3"}, "nodes", "evenly"),
        ({"class": "a100-80g-mig-1g.10gb", "tp": "2"}, "tp", "one MIG instance"),
        ({"class": "[h100-80g, '*-mig-*']", "gpus": "2"}, "gpus", "one MIG instance"),
        ({"class": "a100-80g-mig-1g.10gb", "nodes": "2", "pp": "2"}, "nodes", "MIG"),
        ({"class": "cpu", "tp": "2"}, "tp", "class cpu"),
        ({"class": "[a100-80g, cpu]", "gpus": "2"}, "gpus", "class cpu"),
        ({"engine": "llama.cpp", "nodes": "2", "pp": "2"}, "nodes", "one node only"),
        ({"engine": "command"}, "source", "belongs in `command`"),
        ({"engine": "command", "source": None}, "command", "missing"),
        ({"engine": "command", "source": None, "command": "[]"}, "command", "is empty"),
        ({"engine": "command", "source": None, "command": "./run"}, "command", "write a list"),
        ({"command": "[./run]"}, "command", "for the engine `command`"),
        ({"source": "https://example.org/m"}, "source", "download"),
        ({"source": "model"}, "source", "begin it with ./"),
        ({"source": "~other/m"}, "source", "~/"),
        ({"source": "./m", "revision": "main"}, "revision", "the source is a path"),
        ({"engine": "llama.cpp", "revision": "main"}, "revision", "cannot choose one"),
        ({"revision": "'--x'"}, "revision", "a branch"),
        ({"args": "[--host, 0.0.0.0]"}, "args", "llmgw chooses the address"),
        ({"args": "[-tp=2]"}, "args", "write `tp`"),
        ({"args": "[--max-model-len, '9']"}, "args", "write `context`"),
        ({"args": "[--api-key, x]"}, "args", "VLLM_API_KEY"),
        ({"args": "[--x, hf_abcdefghijklmnopqrst]"}, "args", "looks like a secret"),
        ({"engine": "llama.cpp", "args": "[-m, x]"}, "args", "write `source`"),
        ({"engine": "sglang", "args": "[--tp-size, '2']"}, "args", "write `tp`"),
        ({"env": "{CUDA_VISIBLE_DEVICES: '0'}"}, "env", "set by llmgw"),
        ({"env": "{LLMGW_NODE: x}"}, "env", "set by llmgw"),
        ({"args": "[--admin-token, abcdefgh]"}, "args", "looks like a secret"),
        ({"env": "{MY_API_KEY: hello}"}, "env", "MY_API_KEY: {from_env: MY_API_KEY}"),
        ({"env": "{DB_PASSWORD: hello}"}, "env", "holds a secret"),
        ({"env": "{PLAIN: hf_abcdefghijklmnopqrst}"}, "env", "holds a secret"),
    ],
)
def test_a_contradiction_is_named_where_it_stands(
    changes: dict[str, str | None], field: str, said: str
) -> None:
    text = catalog(**changes)
    (problem,) = [one for one in problems_of(text) if f": {field}: " in one]
    line = int(problem.split(":")[1])
    assert said in problem
    assert field in text.splitlines()[line - 1] or "missing" in problem


def test_a_secret_is_never_repeated_in_the_message() -> None:
    text = catalog(env="{HF_TOKEN: hf_verysecretverysecret}", args="[--api-key=sk-verysecret]")
    assert not [problem for problem in problems_of(text) if "verysecret" in problem]


def test_a_name_given_twice_says_where_the_first_stands() -> None:
    entry = catalog().removeprefix("models:\n")
    (problem,) = problems_of("models:\n" + entry + entry)
    assert problem == "c.yaml:7: name: m is taken by the entry in line 2"


@pytest.mark.parametrize("text", ["", "# nothing\n", "models:\n", "models: {}\n"])
def test_a_catalog_without_models_says_to_write_some(text: str) -> None:
    (problem,) = problems_of(text)
    assert problem.startswith("c.yaml:1: models: ")


def test_an_empty_list_is_the_wish_to_serve_nothing() -> None:
    assert parse("models: []\n", "c.yaml", "/catalogs").models == ()


def test_other_shapes_at_the_top_are_refused() -> None:
    assert problems_of("- name: m\n")[0].startswith("c.yaml:1: models: must be a mapping")
    assert problems_of("model:\n")[0].startswith("c.yaml:1: model: is not known here")
    assert problems_of("models: [x]\n")[0].startswith("c.yaml:1: models: each entry")
