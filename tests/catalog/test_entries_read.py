"""Good catalogs become entries with sizes in bytes, absolute paths and a consistent split."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.catalog.entries import Entry, Labels
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
    liveness_seconds: 30
    policy: pack
    share: true
    nvlink: ignore
    priority: -5
    kv_cache_dtype: {key: q8_0, value: f16}
    labels:
      require: {zone: eu-*}
      prefer: {disk: nvme}
      avoid: {pool: training}
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
            liveness_seconds=30.0,
            policy="pack",
            share=True,
            nvlink="ignore",
            priority=-5,
            cache_key_dtype="q8_0",
            cache_value_dtype="f16",
            labels=Labels(
                require={"zone": "eu-*"}, prefer={"disk": "nvme"}, avoid={"pool": "training"}
            ),
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


def test_one_word_is_the_type_of_both_halves_of_the_cache() -> None:
    read = entry(kv_cache_dtype="fp8", gpu_memory_fraction="0.9")
    assert (read.cache_key_dtype, read.cache_value_dtype) == ("fp8", "fp8")
    assert read.gpu_memory_fraction == 0.9


def test_what_only_the_node_knows_is_kept_as_a_reference() -> None:
    env = "{A: {from_env: HF_TOKEN}, B: {from_file: /run/secrets/b}, C: 'Bearer ${T}'}"
    assert entry(env=env).env == {
        "A": "${HF_TOKEN}",
        "B": "${file:/run/secrets/b}",
        "C": "Bearer ${T}",
    }


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
