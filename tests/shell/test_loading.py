"""How far an engine is with loading: what the kernel counts of a process, and sizes of weights."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from llmgw.core.stimuli import Key, Start
from llmgw.loading import Loaded, Loading, read_by, weights_bytes

MIB = 1 << 20
HUB = "publisher/model"
START = Start(Key("r1", 0), 1, 1)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(16 * MIB))
    return path


def own() -> int:
    found = read_by(os.getpid())
    assert found is not None
    return found


def test_bytes_that_are_read_are_counted_from_the_cache_of_the_disk_too(weights: Path) -> None:
    before = own()
    weights.read_bytes()
    assert own() - before >= 16 * MIB


def test_bytes_that_are_mapped_are_counted_once_they_are_in_memory(weights: Path) -> None:
    with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        before = own()
        assert sum(mapped[:: mmap.PAGESIZE]) > 0
        assert own() - before >= 15 * MIB


def test_what_was_read_once_stays_read_and_is_never_more_than_there_is(weights: Path) -> None:
    loading, pid = Loading(), os.getpid()
    weights.read_bytes()
    assert loading.measure(START, [pid], str(weights)) == Loaded(16 * MIB, 16 * MIB)
    told = loading.measure(START, [pid, pid], HUB)
    assert told is not None
    again = loading.measure(START, [pid], HUB)
    assert again == told, "its files may be let go of while the next are read"
    loading.forget(START)
    less = loading.measure(START, [pid], HUB)
    assert less is not None
    assert less.read_bytes < told.read_bytes


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    assert read_by(2**22 + 1) is None
    assert Loading().measure(START, [2**22 + 1], HUB) is None
    assert Loading().measure(START, [], HUB) is None


def test_the_weights_are_the_files_of_the_source(tmp_path: Path) -> None:
    sizes = {
        "big-00001-of-00002.gguf": 30,
        "big-00002-of-00002.gguf": 40,
        "other.gguf": 5,
        "hf/a.safetensors": 7,
        "hf/b.safetensors": 8,
        "hf/pytorch_model.bin": 100,
        "hf/tokenizer.json": 1000,
        "torch/pytorch_model.bin": 9,
        "empty/config.json": 1,
    }
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    expected = {"big-00001-of-00002.gguf": 70, "other.gguf": 5, "hf": 15, "torch": 9}
    assert {name: weights_bytes(str(tmp_path / name)) for name in expected} == expected
    for nowhere in (None, "org/model", str(tmp_path / "empty"), str(tmp_path / "none.gguf")):
        assert weights_bytes(nowhere) is None
