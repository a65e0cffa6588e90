"""Safetensors headers, indexes and configurations: what is read, and how bad ones are refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.errors import ModelUnreadable
from llmgw.models import safetensors_file as files
from tests.models.files import safetensors

GOOD = {"model.layers.0.mlp.up_proj.weight": ("BF16", (8, 16), 256), "b": ("F8_E4M3", (3,), 3)}


def with_header(header: object, data: int = 0) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\0" * data


def tensor(dtype: str = "F32", shape: object = (1,), at: object = (0, 4)) -> dict[str, object]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": at}}


def test_a_header_gives_types_shapes_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors(GOOD))
    assert [(t.dtype, t.shape, t.bytes) for t in files.read_header(path)] == [
        ("BF16", (8, 16), 256),
        ("F8_E4M3", (3,), 3),
    ]


def test_a_type_of_the_future_counts_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(with_header(tensor("F2_ODD", (3,), (0, 5)), 5))
    assert [t.bytes for t in files.read_header(path)] == [5]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "its header claims 0 bytes and the file has 0"),
        (b"version https://git-lfs", "a Git LFS pointer?"),
        (struct.pack("<Q", 1 << 62) + b"{}", "it is cut off"),
        (with_header(b"{"), "no safetensors header"),
        (with_header(b"[" * 3000), "no safetensors header"),
        (with_header(b"\xff\xfe{}"), "no safetensors header"),
        (with_header([]), "no safetensors header"),
        (with_header({"a": {"dtype": "F32"}}), "no safetensors header"),
        (with_header(tensor()), "lies at 0 to 4 of 0 bytes"),
        (with_header(tensor(at=(4, 0)), 4), "lies at 4 to 0"),
        (with_header(tensor(at=(-4, 0)), 4), "lies at -4 to 0"),
        (with_header(tensor(shape=(2,)), 4), "these do not agree"),
        (with_header(tensor(shape=(-1, -1)), 4), "these do not agree"),
        (with_header(tensor(shape=[1] * 99), 4), "these do not agree"),
    ],
)
def test_a_bad_header_is_named_with_what_is_wrong(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ModelUnreadable) as caught:
        files.read_header(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("reader", [files.read_index, files.read_json])
@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"[" * 100_000, b"\xff", b'{"weight_map": {}', b"1" * 5000]
)
def test_bad_json_is_refused(tmp_path: Path, reader: Callable[[Path], object], raw: bytes) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(raw)
    with pytest.raises(ModelUnreadable, match=r"odd\.json"):
        reader(path)


def test_infinity_is_read_since_mamba_models_have_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"time_step_limit": [0.0, Infinity]}')
    assert files.read_json(path) == {"time_step_limit": [0.0, float("inf")]}


def test_a_configuration_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b" " * (files.MOST_CONFIG_BYTES + 1))
    with pytest.raises(ModelUnreadable, match="larger than"):
        files.read_json(path)


@pytest.mark.parametrize("shard", ["../m.safetensors", "/etc/passwd", "a/b.safetensors", "m.bin"])
def test_an_index_names_only_files_beside_it(tmp_path: Path, shard: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(ModelUnreadable, match="no file beside it"):
        files.read_index(path)


@pytest.mark.parametrize("total", [None, "much", -1, 0, True, 1 << 60])
def test_an_index_without_a_sensible_sum_has_none(tmp_path: Path, total: object) -> None:
    path = tmp_path / "model.safetensors.index.json"
    index = {"metadata": {"total_size": total}, "weight_map": {"a": "m.safetensors"}}
    path.write_text(json.dumps(index))
    assert files.read_index(path).total_bytes is None
