"""Good catalogs become entries with sizes in bytes, absolute paths and a consistent split."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.catalog.diff import CatalogDiff, diff
from llmgw.catalog.entries import Catalog, Entry
from llmgw.catalog.load import load, parse

FULL = """\
models:
  - name: llama-8b
    engine: llama.cpp
    class: [a100-80g, h100-*]
    memory: 1.5GiB
    source: models/llama-8b.gguf
    args: [--flash-attn, 'on']
    env:
      HF_HOME: /cache
      HF_TOKEN: ${HF_TOKEN}
      TOKENIZERS_PARALLELISM: "false"
    context: 8192
    parallel: 4
    replicas: 2
    health: /ready
    start_seconds: 90
    stop_seconds: 2.5
"""


def entry(**fields: str) -> Entry:
    good = {"name": "m", "engine": "vllm", "class": "'*'", "memory": "1GiB", "source": "org/m"}
    inside = ", ".join(f"{key}: {value}" for key, value in {**good, **fields}.items())
    text = f"models: [{{{inside}}}]"
    return parse(text, "c.yaml", "/catalogs", home="/home/operator").models[0]


def test_every_field_is_read() -> None:
    assert parse(FULL, "c.yaml", "/catalogs").models == (
        Entry(
            name="llama-8b",
            engine="llama.cpp",
            classes=("a100-80g", "h100-*"),
            memory_bytes=1_610_612_736,
            source="/catalogs/models/llama-8b.gguf",
            args=("--flash-attn", "on"),
            env={
                "HF_HOME": "/cache",
                "HF_TOKEN": "${HF_TOKEN}",
                "TOKENIZERS_PARALLELISM": "false",
            },
            context=8192,
            parallel=4,
            replicas=2,
            health_path="/ready",
            start_seconds=90.0,
            stop_seconds=2.5,
        ),
    )


@pytest.mark.parametrize(
    ("written", "memory_bytes"),
    [
        ("16GiB", 16 * 2**30),
        ("16 gib", 16 * 2**30),
        ("900MiB", 900 * 2**20),
        ("80GB", 80 * 10**9),
        ('"80GB"', 80 * 10**9),
        ("0.5TiB", 2**39),
        ("17179869184", 2**34),
    ],
)
def test_memory_is_read_in_every_unit(written: str, memory_bytes: int) -> None:
    assert entry(memory=written).memory_bytes == memory_bytes


@pytest.mark.parametrize(
    ("written", "source"),
    [
        ("org/model", "org/model"),
        ("./model", "/catalogs/model"),
        ("../model", "/model"),
        ("~/models/m", "/home/operator/models/m"),
        ("/srv/m/", "/srv/m"),
        ("m.gguf", "/catalogs/m.gguf"),
        ("dir/m.GGUF", "/catalogs/dir/m.GGUF"),
    ],
)
def test_paths_become_absolute_and_repositories_stay(written: str, source: str) -> None:
    assert entry(source=written).source == source


@pytest.mark.parametrize(
    ("fields", "split"),
    [
        ({}, (1, 1, 1, 1)),
        ({"tp": "4"}, (4, 4, 1, 1)),
        ({"tp": "4", "pp": "2"}, (8, 4, 2, 1)),
        ({"tp": "8", "pp": "2", "gpus": "16", "nodes": "2"}, (16, 8, 2, 2)),
        ({"gpus": "2"}, (2, 2, 1, 1)),
        ({"gpus": "16", "nodes": "2"}, (16, 8, 2, 2)),
        ({"nodes": "2"}, (2, 1, 2, 2)),
        ({"gpus": "2", "engine": "llama.cpp"}, (2, 1, 2, 1)),
    ],
)
def test_gpus_tp_and_pp_complete_one_another(
    fields: dict[str, str], split: tuple[int, int, int, int]
) -> None:
    read = entry(**fields)
    assert (read.gpus, read.tp, read.pp, read.nodes) == split


def test_a_source_that_is_not_here_is_a_warning_only(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(FULL)
    loaded = load(path)
    assert loaded.catalog.models[0].source == str(tmp_path / "models/llama-8b.gguf")
    (warning,) = loaded.warnings
    assert warning.startswith(f"{path}:6: source: ")
    (tmp_path / "models").mkdir()
    (tmp_path / "models/llama-8b.gguf").touch()
    assert load(path).warnings == ()


def test_a_command_that_never_names_its_port_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    text = "models: [{name: m, engine: command, class: cpu, memory: 1GiB, command: [serve%s]}]"
    path.write_text(text % "")
    assert "LLMGW_PORT" in load(path).warnings[0]
    path.write_text(text % ", '--port={port}'")
    assert load(path).warnings == ()


def test_a_diff_names_what_came_what_went_and_what_changed() -> None:
    a, b, c = (entry(name=name) for name in "abc")
    old, new = Catalog(models=(a, b)), Catalog(models=(entry(name="b", tp="2"), c))
    assert diff(old, new) == CatalogDiff(added=("c",), removed=("a",), changed=("b",))
    assert diff(old, old) == CatalogDiff(added=(), removed=(), changed=())
