"""GGUF headers: what is read of good files, and how bad ones are refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.errors import ModelUnreadable
from llmgw.models import gguf_file
from llmgw.models.gguf_file import read_gguf
from llmgw.models.gguf_model import gguf_metadata
from tests.models.files import F16, Q8_0, gguf, layer_tensors, model_keys, text, value


def written(folder: Path, raw: bytes, name: str = "m.gguf") -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


def header(version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def one_tensor(length: int, kind: int) -> bytes:
    return header(tensors=1, rest=text("a") + struct.pack("<IQIQ", 1, length, kind, 0))


class TestReading:
    def test_keys_and_tensors_are_read(self, tmp_path: Path) -> None:
        keys = model_keys() | {"a.list": [1, 2, 3], "a.flags": [True, False], "a.float": 0.5}
        found = read_gguf(written(tmp_path, gguf(keys, {"a": ((64, 3), F16), "b": ((64,), Q8_0)})))
        assert {name: found.keys[name] for name in keys} == keys
        assert [(t.name, t.shape, t.dtype, t.bytes) for t in found.tensors] == [
            ("a", (64, 3), "F16", 384),
            ("b", (64,), "Q8_0", 68),
        ]

    def test_version_2_is_read_alike(self, tmp_path: Path) -> None:
        two, three = (written(tmp_path, gguf(model_keys(), version=v), f"{v}.gguf") for v in (2, 3))
        assert read_gguf(two) == read_gguf(three)

    def test_a_vocabulary_is_counted_and_not_kept(self, tmp_path: Path) -> None:
        words = [f"w{number}" for number in range(gguf_file.KEPT_ITEMS + 1)]
        found = read_gguf(written(tmp_path, gguf({"tokenizer.ggml.tokens": words})))
        assert found.keys["tokenizer.ggml.tokens"] is None
        assert found.lengths == {"tokenizer.ggml.tokens": len(words)}

    def test_a_model_that_another_writer_wrote_is_read_to_the_byte(self, tmp_path: Path) -> None:
        gguf_library = pytest.importorskip("gguf")
        from tests.support.tiny_model import write_tiny_model

        path = write_tiny_model(tmp_path / "tiny.gguf")
        found = read_gguf(path)
        theirs = gguf_library.GGUFReader(path).tensors
        assert {t.name: t.bytes for t in found.tensors} == {t.name: t.n_bytes for t in theirs}
        known = gguf_metadata(str(path), *found)
        assert known.weight_bytes == sum(int(t.n_bytes) for t in theirs)
        assert (known.attention_heads, known.kv_heads, known.context_length) == (1, 1, 4096)


LONG = 1 << 62


class TestRefusing:
    @pytest.mark.parametrize(
        ("raw", "said"),
        [
            (b"", "does not begin with GGUF"),
            (b"GG", "does not begin with GGUF"),
            (b"version https://git-lfs.github.com/spec/v1\n", "does not begin with GGUF"),
            (header(version=1), "version 1, which nobody writes"),
            (header(version=3 << 24), "big endian"),
            (header(version=9), "version 9; versions 2 and 3 are known"),
            (b"GGUF" + struct.pack("<I", 3), "ends in the middle of its header"),
            (header(tensors=LONG), "more than any model has"),
            (header(keys=LONG), "more than any model has"),
            (header(keys=1, rest=struct.pack("<Q", LONG)), "claims 4611686018427387904 bytes"),
            (header(keys=1, rest=text("k")[:-1]), "ends in the middle of its header"),
            (header(keys=1, rest=text("k") + struct.pack("<I", 99)), "which GGUF does not define"),
            (
                header(keys=1, rest=text("k") + struct.pack("<IIQ", 9, 0, LONG)),
                "items: more than any model's",
            ),
            (
                header(keys=1, rest=text("k") + struct.pack("<IIQ", 9, 0, 1 << 20)),
                "ends in the middle of its header",
            ),
            (
                header(keys=1, rest=text("k") + struct.pack("<IIQ", 9, 9, 1) * 9),
                "items: more than any model's",
            ),
            (header(keys=2, rest=(text("k") + value(1)) * 2), "holds the key 'k' twice"),
            (gguf({"general.alignment": 0}), "which no file can have"),
            (gguf({}, {"a": ((64, 1 << 40), F16)}, data=False), "it is cut off"),
            (gguf({}, {"a": ((32,), F16)}, data=False), "bytes before its last tensor"),
            (one_tensor(33, Q8_0), "no multiple of 32"),
            (one_tensor(64, 77), "the type 77"),
            (header(tensors=1, rest=text("a") + struct.pack("<I", 9)), "has 9 dimensions"),
        ],
    )
    def test_a_bad_file_is_named_with_what_is_wrong(
        self, tmp_path: Path, raw: bytes, said: str
    ) -> None:
        path = written(tmp_path, raw)
        with pytest.raises(ModelUnreadable) as caught:
            read_gguf(path)
        assert said in str(caught.value)
        assert str(path) in str(caught.value)

    def test_a_file_cut_off_anywhere_is_refused(self, tmp_path: Path) -> None:
        whole = gguf(model_keys(), layer_tensors())
        last = len(whole) - 31  # the last tensor may end within its padding
        for length in (*range(0, 700, 5), *range(700, last, 997)):
            with pytest.raises(ModelUnreadable):
                read_gguf(written(tmp_path, whole[:length]))

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ModelUnreadable, match="No such file"):
            read_gguf(tmp_path / "none.gguf")

    @given(st.binary(max_size=300), st.integers(0, 400))
    def test_noise_is_refused_or_read_and_never_worse(
        self, tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
    ) -> None:
        whole = bytearray(gguf(model_keys(), layer_tensors()))
        whole[at : at + len(noise)] = noise
        path = written(tmp_path_factory.getbasetemp(), bytes(whole), "noise.gguf")
        try:
            gguf_metadata("noise", *read_gguf(path))
        except ModelUnreadable as error:
            assert "noise" in str(error)
