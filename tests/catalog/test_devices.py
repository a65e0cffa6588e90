"""What an entry asks of devices: classes that exist, memory that they have, settings that agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.catalog.draft import ModelFacts
from llmgw.catalog.entries import Catalog, Entry, Labels
from llmgw.catalog.load import check_file, load, parse
from llmgw.catalog.problems import problems
from llmgw.catalog.validate import Checked, check_text
from tests.catalog.test_mistakes import catalog, problems_of
from tests.support.tiny_model import write_tiny_model

GIB = 1 << 30


def checked(**changes: str | None) -> Checked:
    """Check a catalog of one entry, whose model nobody can look into."""
    return check_text(catalog(**changes), "c.yaml", "/catalogs")


def looked_into(facts: ModelFacts, **changes: str | None) -> Checked:
    """Check a catalog of one entry whose model says `facts`."""
    return check_text(catalog(**changes), "c.yaml", "/catalogs", look=lambda _entry: facts)


@pytest.mark.parametrize(
    "name",
    [
        *("a100-80g", "h100-nvl-94g", "rtx-pro-6000-blackwell-max-q-96g", "gtx1660-ti-6g", "cpu"),
        *(
            "a100-80g-mig-1g.10gb",
            "a100-40g-mig-3g.20gb",
            "h100-80g-mig-1g.10gb+me",
            "quux-9000-40g",
        ),
        *("h200-141g-mig-1c.3g.71gb", "gb200-186g-mig-7g.189gb", "a30-24g-mig-unknown"),
        *("'*'", "'*-80g'", "'h100-*'", "'*-mig-*'", "'a100-80g-mig-*'"),
    ],
)
def test_a_class_that_a_card_can_have_is_taken(name: str) -> None:
    assert checked(**{"class": name, "memory": "2GiB"}).problems == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a100", "such as a100-40g, a100-80g; or write a100-*"),
        ("quux", "such as quux-24g; or write quux-*"),
        ("a100-80gb", "did you mean a100-80g?"),
        ("a100-60g", "no a100 has 60 GB; there is a100-40g, a100-80g"),
        ("nvidia-a100-80g", "did you mean a100-80g?"),
        ("v100-sxm2-32g", "did you mean v100-32g?"),
        ("a100.80g", "no card is called"),
        ("t4-16g-mig-1g.5gb", "t4 has no MIG"),
        ("a100-40g-mig-3g.60gb", "60 GB does not fit a card of 40 GB"),
        ("a100-80g-mig-8g.80gb", "a card has 7 slices"),
        ("a100-80g-mig-4c.3g.40gb", "a card has 7 slices"),
        ("a100-80g-mig-10gb", "no MIG profile"),
    ],
)
def test_a_class_that_no_card_can_have_says_what_to_write(name: str, said: str) -> None:
    (problem,) = problems_of(catalog(**{"class": name, "memory": "2GiB"}))
    assert problem.startswith(f"c.yaml:4: class: {name}: ")
    assert said in problem


def test_a_card_spelt_another_way_is_a_warning_with_the_known_one() -> None:
    found = checked(**{"class": "rtx-4090-24g", "memory": "2GiB"})
    assert found.problems == ()
    assert found.warnings == (
        "c.yaml:4: class: rtx-4090-24g is no known card; is rtx4090-24g meant?",
    )


def test_an_engine_that_is_seen_to_fail_on_instances_is_warned_of() -> None:
    (warning,) = checked(**{"class": "a100-80g-mig-1g.10gb", "memory": "2GiB"}).warnings
    assert "vllm may not start on a100-80g-mig-1g.10gb" in warning
    assert "seen up to version 0.20.1" in warning


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"memory": "85GiB"}, "memory", "85.0 GiB on each device is more than a100-80g can have"),
        ({"memory": "90GiB", "class": "[a100-80g, '*-40g']"}, "memory", "than a100-80g, *-40g can"),
        (
            {"memory": "11GiB", "class": "a100-80g-mig-1g.10gb", "engine": "llama.cpp"},
            "memory",
            "than a100-80g-mig-1g.10gb",
        ),
        ({"gpu_memory_fraction": "0"}, "gpu_memory_fraction", "above 0"),
        ({"gpu_memory_fraction": "1.5"}, "gpu_memory_fraction", "at most 1"),
        ({"gpu_memory_fraction": "90%"}, "gpu_memory_fraction", "such as 0.9"),
        ({"gpu_memory_fraction": "0.5"}, "gpu_memory_fraction", "less than the 60.0 GiB"),
        ({"gpu_memory_fraction": "0.9", "share": "true"}, "gpu_memory_fraction", "`share`"),
        ({"gpu_memory_fraction": "0.9", "engine": "llama.cpp"}, "gpu_memory_fraction", "no such"),
        ({"kv_cache_dtype": "fp9"}, "kv_cache_dtype", "did you mean fp8"),
        ({"kv_cache_dtype": "q8_0"}, "kv_cache_dtype", "it has auto, float16"),
        ({"kv_cache_dtype": "{key: fp8, value: auto}"}, "kv_cache_dtype", "write one word"),
        ({"kv_cache_dtype": "{key: fp8}"}, "kv_cache_dtype", "write one word"),
        ({"kv_cache_dtype": "{}"}, "kv_cache_dtype", "one word, or {key"),
        ({"kv_cache_dtype": "{k: fp8}"}, "kv_cache_dtype.k", "none of key, value"),
        ({"nvlink": "require", "class": "cpu"}, "nvlink", "cpu has no NVLink"),
        ({"nvlink": "yes"}, "nvlink", "one of require, prefer, ignore"),
        ({"policy": "sprad"}, "policy", "did you mean spread?"),
        ({"share": "yes"}, "share", "true or false, not 'yes'"),
        ({"share": "'true'"}, "share", "without quotes"),
        ({"priority": "high"}, "priority", "whole number"),
        ({"priority": "1001"}, "priority", "-1000 to 1000"),
        ({"priority": "-0"}, "priority", "whole number"),
        ({"labels": "[a]"}, "labels", "mapping with require, prefer, avoid"),
        ({"labels": "{requires: {a: b}}"}, "labels.requires", "did you mean require?"),
        ({"labels": "{require: [a]}"}, "labels.require", "mapping of names"),
        ({"labels": "{require: {'a b': c}}"}, "labels", "no name of a label"),
        ({"labels": "{require: {a: 'b c'}}"}, "labels", "no value of a label"),
        ({"labels": "{require: {a: b}, avoid: {a: b}}"}, "labels", "in `avoid` and in `require`"),
        ({"env": "{A: {from_env: 'a b'}}"}, "env.A.from_env", "such as HF_TOKEN"),
        ({"env": "{A: {from_file: token}}"}, "env.A.from_file", "absolute path"),
        ({"env": "{A: {form_env: B}}"}, "env.A.form_env", "did you mean from_env?"),
        ({"env": "{A: {from_env: B, from_file: /c}}"}, "env.A", "{from_env: NAME} or"),
        ({"liveness_seconds": "-1"}, "liveness_seconds", "above 0"),
        ({"args": "[--kv-cache-dtype, fp8]"}, "args", "write `kv_cache_dtype`"),
        ({"gpu_memory_utilization": "0.9"}, "gpu_memory_utilization", "`gpu_memory_fraction`?"),
    ],
)
def test_what_does_not_go_together_is_named(
    changes: dict[str, str | None], field: str, said: str
) -> None:
    (problem,) = problems_of(catalog(**changes))
    assert problem.split(": ")[1] == field
    assert said in problem


def test_one_class_that_is_too_small_is_a_warning_while_another_is_not() -> None:
    found = checked(**{"class": "[a100-40g, a100-80g]"})
    assert found.problems == ()
    assert "more than a100-40g can have" in found.warnings[0]


def test_nvlink_for_a_single_device_is_a_warning() -> None:
    assert "single device" in checked(nvlink="require").warnings[0]
    assert checked(nvlink="require", tp="2").warnings == ()


class TestWithoutMemory:
    """Memory is estimated where it can be, and asked for where it cannot."""

    def test_the_estimate_is_taken_and_marked(self) -> None:
        found = looked_into(ModelFacts(memory_bytes=7 * GIB), memory=None)
        (entry,) = found.catalog.models
        assert (entry.memory_bytes, entry.memory_estimated) == (7 * GIB, True)
        assert problems(found.catalog) == ()

    def test_what_is_odd_about_an_estimate_is_a_warning(self) -> None:
        found = looked_into(ModelFacts(memory_bytes=7 * GIB, remark="an upper bound"), memory=None)
        assert found.warnings == ("c.yaml:2: memory: estimated as 7.0 GiB: an upper bound",)

    def test_given_memory_is_not_estimated(self) -> None:
        (entry,) = looked_into(ModelFacts(memory_bytes=7 * GIB)).catalog.models
        assert (entry.memory_bytes, entry.memory_estimated) == (60 * GIB, False)

    @pytest.mark.parametrize("memory_bytes", [None, 0, -1])
    def test_an_unknown_estimate_is_an_error_and_never_zero(self, memory_bytes: int | None) -> None:
        facts = ModelFacts(memory_bytes=memory_bytes, unknown="the file is not here")
        found = looked_into(facts, memory=None)
        assert found.catalog.models == ()
        (problem,) = found.problems
        assert problem.startswith("c.yaml:2: memory: missing, and cannot be estimated: the file is")
        assert problem.endswith("write what one replica needs on each device, such as 16GiB")

    def test_a_command_has_no_model_to_look_into(self) -> None:
        changes = {"engine": "command", "source": None, "command": "[serve, '{port}']"}
        (problem,) = looked_into(ModelFacts(memory_bytes=GIB), memory=None, **changes).problems
        assert "memory: missing; write what one replica needs" in problem

    def test_the_split_that_follows_from_gpus_is_known_to_the_estimate(self) -> None:
        seen: list[Entry] = []

        def look(entry: Entry) -> ModelFacts:
            seen.append(entry)
            return ModelFacts(memory_bytes=GIB)

        check_text(catalog(memory=None, gpus="4", context="4096"), "c", "/", look=look)
        assert [(e.tp, e.gpus, e.context, e.memory_bytes) for e in seen] == [(4, 4, 4096, 0)]

    def test_an_estimate_above_the_class_is_refused_like_a_given_one(self) -> None:
        (problem,) = looked_into(ModelFacts(memory_bytes=90 * GIB), memory=None).problems
        assert "90.0 GiB on each device is more than a100-80g can have" in problem

    def test_other_mistakes_come_first(self) -> None:
        found = looked_into(ModelFacts(unknown="?"), memory=None, replicas="-1")
        assert [problem.split(": ")[1] for problem in found.problems] == ["replicas"]


def test_a_real_model_file_is_looked_into(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny.gguf", "tiny")
    path = tmp_path / "c.yaml"
    path.write_text(catalog(engine="llama.cpp", source="./tiny.gguf", memory=None, context="512"))
    (entry,) = load(path).catalog.models
    assert entry.memory_estimated
    assert 2**20 < entry.memory_bytes < 2 * GIB
    path.write_text(catalog(engine="llama.cpp", source="./none.gguf", memory=None))
    (problem,) = check_file(path).problems
    assert "cannot be estimated" in problem
    assert "none.gguf: is not on this machine" in problem


@pytest.mark.parametrize(("tp", "good"), [("2", True), ("7", True), ("4", False), ("28", False)])
def test_tp_must_divide_the_attention_heads(tp: str, good: bool) -> None:
    found = looked_into(ModelFacts(heads=14), tp=tp)
    assert (found.problems == ()) is good
    assert good or "14 attention heads evenly; choose of 1, 2, 7, 14" in found.problems[0]


def test_llama_cpp_shares_heads_as_it_likes() -> None:
    changes = {"engine": "llama.cpp", "source": "./m.gguf", "tp": "4"}
    assert looked_into(ModelFacts(heads=14), **changes).problems == ()


def test_the_log_is_asked_the_same_about_devices() -> None:
    good = parse(catalog(tp="2", share="true", priority="5"), "c.yaml", "/").models[0]
    assert problems(Catalog(models=(good,))) == ()
    wrong = {
        "class": replace(good, classes=("a100",)),
        "memory": replace(good, memory_bytes=99 * GIB),
        "kv_cache_dtype": replace(good, cache_key_dtype="fp9"),
        "priority": replace(good, priority=10**6),
        "labels": replace(good, labels=Labels(avoid={"a b": "c"})),
        "gpu_memory_fraction": replace(good, gpu_memory_fraction=2.0),
    }
    for field, entry in wrong.items():
        assert any(f": {field}: " in said for said in problems(Catalog(models=(entry,)))), field
