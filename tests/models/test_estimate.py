"""Estimates: splits over devices, types of caches, engines, and what is not known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from llmgw.models.by_hand import by_hand
from llmgw.models.config_model import config_metadata
from llmgw.models.dtypes import CACHE_TYPES
from llmgw.models.estimate import estimate, largest_context
from llmgw.models.types import Estimate, Layer, Metadata, Unknown
from tests.models.published import GIB, MODELS, llama

ENGINES = ("llama.cpp", "vllm", "sglang")


def model(name: str = "Llama 3.1 8B") -> Metadata:
    return config_metadata(name, MODELS[name].config)


def made(found: Metadata, **settings: Any) -> Estimate:  # noqa: ANN401
    given: dict[str, Any] = {"engine": "vllm", "context": 8192} | settings
    answer = estimate(found, **given)
    assert isinstance(answer, Estimate), answer
    return answer


class TestParts:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_the_sum_is_that_of_the_parts_and_each_says_what_was_assumed(self, engine: str) -> None:
        found = made(model(), engine=engine)
        assert found.total_bytes == sum(part.bytes for part in found.parts)
        assert all(part.bytes > 0 and part.assumption for part in found.parts)
        assert found.part("weights") == model().weight_bytes
        assert found.part("nothing") == 0

    def test_a_real_profile_of_vllm_is_matched(self) -> None:
        """vLLM pull request 10511: Llama 3 8B, weights 14.96 GiB, activations 1.26 GiB."""
        found = made(model())
        assert found.part("weights") / GIB == pytest.approx(14.96, rel=0.01)
        assert found.part("activations") / GIB == pytest.approx(1.26, rel=0.05)

    def test_the_cache_of_a_real_sglang_is_matched(self) -> None:
        """vLLM issue 21348: Qwen3 235B on 4 cards, 367,404 tokens, keys and values 8.23 GiB each.

        The same place has vLLM with 178,880 tokens in 8.11 GiB.
        """
        config = llama(
            model_type="qwen3_moe", num_hidden_layers=94, num_attention_heads=64, head_dim=128,
            num_key_value_heads=4, hidden_size=4096, num_experts=128, moe_intermediate_size=1536,
        )  # fmt: skip
        found = config_metadata("c", config)
        cache = made(found, engine="sglang", tp=4, context=367_404).part("cache")
        assert cache / GIB == pytest.approx(2 * 8.23, rel=0.001)
        cache = made(found, engine="vllm", tp=4, context=178_880).part("cache")
        assert cache / GIB == pytest.approx(8.11, rel=0.02)

    def test_what_was_not_given_is_said(self) -> None:
        found = estimate(model(), engine="vllm")
        assert isinstance(found, Estimate)
        assert (found.context, found.parallel) == (131_072, 1)
        said = " ".join(found.assumptions)
        assert "the model's own 131072 tokens" in said
        assert "how many sequences" in said
        assert "weights worked out" in said

    def test_sglang_leaves_room_beside_weights_and_cache(self) -> None:
        found = made(model("Llama 3.1 70B"), engine="sglang", tp=4)
        static = found.part("weights") + found.part("cache")
        assert static / found.total_bytes == pytest.approx(0.88, rel=0.001)
        given = made(model("Llama 3.1 70B"), engine="sglang", tp=4, gpu_memory_fraction=0.8)
        assert given.part("reserve") == 0

    def test_the_processor_has_no_cuda_context(self) -> None:
        on_card, on_processor = (
            made(model(), engine="llama.cpp", processor=processor) for processor in (False, True)
        )
        assert on_card.total_bytes - on_processor.total_bytes == on_card.part("engine") > 0


class TestCacheTypes:
    @pytest.mark.parametrize(
        ("keys", "values", "of_16_bits"),
        [
            (None, None, 1),
            ("auto", "bfloat16", 1),
            ("f16", "f16", 1),
            ("fp8", "fp8_e5m2", 1 / 2),
            ("q8_0", "q8_0", 34 / 64),
            ("q4_0", "q4_0", 18 / 64),
            ("q8_0", "q4_0", (34 + 18) / 128),
            ("f16", "q4_0", (1 + 18 / 64) / 2),
            ("f32", "f32", 2),
            ("Q5_1", "IQ4_NL", (24 + 18) / 128),
        ],
    )
    def test_each_half_takes_its_own_blocks(
        self, keys: str | None, values: str | None, of_16_bits: float
    ) -> None:
        found = made(model(), cache_key_dtype=keys, cache_value_dtype=values)
        assert found.part("cache") == of_16_bits * made(model()).part("cache")

    def test_a_type_that_nobody_knows_is_refused(self) -> None:
        found = estimate(model(), engine="vllm", cache_value_dtype="q9_9")
        assert isinstance(found, Unknown)
        assert "'q9_9' of the values" in found.reason

    def test_a_latent_has_only_the_half_of_the_keys(self) -> None:
        latent = model("DeepSeek V3")
        halves = made(latent, cache_key_dtype="fp8")
        assert halves.part("cache") * 2 == made(latent).part("cache")
        assert made(latent, cache_value_dtype="fp8").part("cache") == made(latent).part("cache")


class TestSplits:
    @pytest.mark.parametrize("tp", [1, 2, 4, 8])
    def test_ranks_share_weights_and_cache_evenly(self, tp: int) -> None:
        whole, part = made(model("Llama 3.1 70B")), made(model("Llama 3.1 70B"), tp=tp)
        assert part.part("weights") == pytest.approx(whole.part("weights") / tp, rel=0.001)
        assert part.part("cache") == whole.part("cache") / tp

    def test_there_is_no_less_than_one_kv_head_on_a_rank(self) -> None:
        eight, sixteen = (made(model("Llama 3.1 70B"), tp=tp) for tp in (8, 16))
        assert sixteen.part("cache") == eight.part("cache")
        single = config_metadata("c", llama(num_key_value_heads=1))
        assert made(single, tp=8).part("cache") == made(single).part("cache")
        assert made(single, tp=8).part("weights") > made(single).part("weights") / 8

    def test_five_heads_on_two_ranks_are_three_on_the_fuller(self) -> None:
        five = config_metadata("c", llama(num_key_value_heads=5))
        assert made(five, tp=2).part("cache") == made(five).part("cache") * 3 / 5

    def test_a_latent_stands_whole_on_every_rank(self) -> None:
        latent = model("DeepSeek V3")
        assert made(latent, tp=8).part("cache") == made(latent).part("cache")
        assert made(latent, tp=8).part("weights") < made(latent).part("weights") / 7

    def test_stages_share_layers_and_the_fullest_counts(self) -> None:
        whole, two = made(model()), made(model(), pp=2)
        assert two.part("cache") == whole.part("cache") / 2
        assert two.part("weights") == pytest.approx(whole.part("weights") / 2, rel=0.01)
        layers = tuple(Layer(weight_bytes=size, kv_heads=1, key_length=1) for size in (1, 1, 1, 9))
        uneven = Metadata(source="m", format="f", architecture="a", layers=layers)
        assert [made(uneven, pp=pp).part("weights") for pp in (1, 2, 4)] == [12, 10, 9]

    def test_a_tied_matrix_is_on_both_ends(self) -> None:
        tied = model("Gemma 3 270M")
        ends = tied.embedding_bytes
        layers = sum(layer.weight_bytes for layer in tied.layers)
        assert made(tied).part("weights") == layers + ends
        assert made(tied, pp=2).part("weights") == layers // 2 + ends

    def test_llama_cpp_keeps_the_cache_on_one_device_when_it_splits_rows(self) -> None:
        rows, layers = (
            made(model(), engine="llama.cpp", **split) for split in ({"tp": 2}, {"pp": 2})
        )
        assert rows.part("cache") == 2 * layers.part("cache")

    def test_side_files_and_towers_stand_whole_on_the_first_device(self) -> None:
        plain = Metadata(
            source="m", format="f", architecture="a", layers=(Layer(weight_bytes=80),) * 2
        )
        more = Metadata(
            source="m", format="f", architecture="a", layers=plain.layers,
            other_bytes=1000, side_bytes=500,
        )  # fmt: skip
        for split in ({"tp": 2}, {"pp": 2}):
            extra = made(more, **split).part("weights") - made(plain, **split).part("weights")
            assert extra == 1500

    def test_ranks_speak_through_buffers(self) -> None:
        assert made(model(), tp=2).part("engine") > made(model()).part("engine")


class TestContext:
    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("name", ["Llama 3.1 8B", "Gemma 3 27B", "Jamba v0.1", "DeepSeek V3"])
    def test_the_largest_context_fits_and_one_more_step_does_not(
        self, engine: str, name: str
    ) -> None:
        known = model(name)
        memory = made(known, engine=engine, context=5000, parallel=3).total_bytes
        largest = largest_context(known, memory, engine=engine, parallel=3)
        assert largest is not None
        assert largest >= 5000
        assert made(known, engine=engine, context=largest, parallel=3).total_bytes <= memory
        more = made(known, engine=engine, context=largest + 1, parallel=3).total_bytes
        assert more > memory or largest == known.context_length

    def test_it_is_no_longer_than_the_model_was_made_for(self) -> None:
        assert largest_context(model("Phi 4"), 1 << 50, engine="vllm") == 16_384

    def test_where_the_weights_do_not_fit_there_is_none(self) -> None:
        assert largest_context(model(), 8 * GIB, engine="vllm") is None
        assert largest_context(model(), 80 * GIB, engine="nothing") is None

    def test_a_fraction_of_the_device_counts_as_no_more(self) -> None:
        half = largest_context(model(), 80 * GIB, engine="vllm", gpu_memory_fraction=0.25)
        assert half == largest_context(model(), 20 * GIB, engine="vllm")

    def test_what_is_kept_per_sequence_grows_with_their_number_alone(self) -> None:
        mamba = config_metadata(
            "c",
            llama(model_type="mamba", state_size=16, conv_kernel=4, intermediate_size=8192),
        )
        one = made(mamba, parallel=1).part("cache")
        assert made(mamba, parallel=7).part("cache") == 7 * one
        assert made(mamba, parallel=1, context=100_000).part("cache") == one

    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_window_never_takes_more_than_the_whole(self, engine: str) -> None:
        window = model("Gemma 2 27B")
        whole = config_metadata("c", dict(MODELS["Gemma 2 27B"].config) | {"model_type": "qwen2"})
        for context in (100, 4096, 8192):
            for parallel in (None, 1, 16):
                kept, most = (
                    made(x, engine=engine, context=context, parallel=parallel).part("cache")
                    for x in (window, whole)
                )
                assert kept <= most


class TestNotKnown:
    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"engine": "command"}, "the engine command needs; give `memory`"),
            ({"tp": 0}, "tp 0 x pp 1"),
            ({"tp": 1 << 20}, "no number of devices"),
            ({"pp": 33}, "more than the model's 32 layers"),
            ({"context": -5}, "-5 tokens"),
            ({"context": 1 << 40}, "a context of 1099511627776 tokens cannot be"),
            ({"parallel": -1}, "-1 sequences"),
            ({"gpu_memory_fraction": 1.5}, "fraction of 1.5"),
        ],
    )
    def test_what_cannot_be_is_refused(self, settings: dict[str, Any], said: str) -> None:
        given: dict[str, Any] = {"engine": "vllm", "context": 10} | settings
        found = estimate(model(), **given)
        assert isinstance(found, Unknown)
        assert said in found.reason

    def test_weights_of_no_size_are_not_taken_as_nothing(self) -> None:
        empty = Metadata(source="m", format="f", architecture="a", layers=(Layer(),))
        found = estimate(empty, engine="vllm", context=10)
        assert isinstance(found, Unknown)
        assert "size of the weights" in found.reason

    def test_without_a_context_length_one_must_be_given(self) -> None:
        found = estimate(by_hand(GIB, 1024), engine="vllm")
        assert isinstance(found, Unknown)
        assert "give `context`" in found.reason

    def test_widths_that_are_not_known_count_as_much_and_not_as_nothing(self) -> None:
        for engine, part in (("llama.cpp", "compute"), ("vllm", "activations")):
            assert made(by_hand(GIB, 1024), engine=engine).part(part) == 2 * GIB


class TestByHand:
    @pytest.mark.parametrize(
        ("weights", "per_token"), [(16 * GIB, 131_072), (7, 64), (GIB, 327_680)]
    )
    def test_the_sizes_are_those_that_were_given(self, weights: int, per_token: int) -> None:
        found = made(by_hand(weights, per_token), context=4096, parallel=2)
        assert found.part("weights") == weights
        assert found.part("cache") == 8192 * per_token


@for_all(
    tp=st.sampled_from([1, 2, 3, 4, 8, 16]),
    pp=st.sampled_from([1, 2, 3, 4]),
    context=st.integers(1, 200_000),
    parallel=st.integers(1, 64),
    engine=st.sampled_from(ENGINES),
    half=st.sampled_from([None, *CACHE_TYPES]),
    name=st.sampled_from([*MODELS]),
)
def test_more_asked_is_never_less_needed(
    tp: int, pp: int, context: int, parallel: int, engine: str, half: str | None, name: str
) -> None:
    settings: dict[str, Any] = {"engine": engine, "cache_key_dtype": half, "tp": tp, "pp": pp}
    known = model(name)
    found = made(known, context=context, parallel=parallel, **settings)
    assert found.total_bytes >= known.weight_bytes // (tp * pp)
    longer = made(known, context=context + 997, parallel=parallel, **settings)
    more = made(known, context=context, parallel=parallel + 1, **settings)
    assert found.total_bytes <= min(longer.total_bytes, more.total_bytes)
