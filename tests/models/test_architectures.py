"""What each family of architectures keeps, from its `config.json` and from its GGUF keys alike."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from llmgw.errors import ModelUnreadable
from llmgw.models.config_model import config_metadata
from llmgw.models.estimate import estimate
from llmgw.models.gguf_model import gguf_metadata
from llmgw.models.types import Estimate, Layer, Metadata, TensorInfo
from tests.models.files import model_keys
from tests.models.published import MODELS, llama

MIB = 1 << 20
TENSORS = (TensorInfo("token_embd.weight", (64, 100), "F16", 12_800),)


def of_config(**values: Any) -> Metadata:  # noqa: ANN401
    return config_metadata("config.json", llama(**values), TENSORS)


def of_gguf(architecture: str, **values: Any) -> Metadata:  # noqa: ANN401
    return gguf_metadata("m.gguf", model_keys(architecture, **values), {}, TENSORS)


def pattern(found: Metadata) -> str:
    """Return the layers as letters: `F`ull, `W`indow, `L`atent, `S`tate, `B`oth, `.` nothing."""
    return "".join(map(_letter, found.layers))


def _letter(layer: Layer) -> str:
    state = layer.conv_elements + layer.state_elements > 0
    if layer.kv_heads == 0:
        return "S" if state else "."
    if state:
        return "B"
    return "L" if layer.latent else "F" if layer.window is None else "W"


def cache_mebibytes(found: Metadata, context: int) -> float:
    made = estimate(found, engine="llama.cpp", context=context, parallel=1)
    assert isinstance(made, Estimate)
    return made.part("cache") / MIB


HYBRID = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
LATENT = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "num_attention_heads": 16,
}
GRIFFIN = {
    "block_types": ["recurrent", "recurrent", "attention"],
    "attention_window_size": 2048,
}
SHARING = {
    "sliding_window": 512,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "local"] * 2,
    "num_kv_shared_layers": 3,
}
DELTA = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("llama", {}, "FFFFFFFF"),
        ("mistral", {"sliding_window": 4096}, "WWWWWWWW"),
        ("mistral", {"sliding_window": None}, "FFFFFFFF"),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}, "FFFFFFFF"),
        (
            "qwen2",
            {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 6},
            "FFFFFFWW",
        ),
        ("phi3", {"sliding_window": 2047}, "FFFFFFFF"),
        ("gemma2", {}, "WFWFWFWF"),
        ("gemma3_text", {"sliding_window": 1024}, "WWWWWFWW"),
        ("gemma3_text", {"sliding_window": 1024, "sliding_window_pattern": 2}, "WFWFWFWF"),
        ("cohere2", {"sliding_window": 4096}, "WWWFWWWF"),
        ("exaone4", {"sliding_window": 4096, "sliding_window_pattern": "LLLG"}, "WWWFWWWF"),
        ("gpt_oss", {"layer_types": ["sliding_attention", "full_attention"] * 4}, "WFWFWFWF"),
        ("llama4_text", {}, "WWWFWWWF"),
        ("llama4_text", {"no_rope_layers": [1, 1, 0, 1, 1, 1, 0, 1]}, "WWFWWWFW"),
        ("deepseek_v3", LATENT, "LLLLLLLL"),
        ("minicpm3", LATENT, "FFFFFFFF"),
        ("jamba", {**HYBRID, "attn_layer_period": 4, "attn_layer_offset": 2}, "SSFSSSFS"),
        ("bamba", {**HYBRID, "attn_layer_indices": [3]}, "SSSFSSSS"),
        ("granitemoehybrid", {**HYBRID, "layer_types": ["mamba"] * 7 + ["attention"]}, "SSSSSSSF"),
        ("nemotron_h", {**HYBRID, "hybrid_override_pattern": "M-M*-M-E"}, "S.SF.S.."),
        ("falcon_h1", HYBRID, "BBBBBBBB"),
        ("mamba", {"state_size": 16}, "SSSSSSSS"),
        ("qwen3_next", DELTA, "SSSFSSSF"),
        (
            "kimi_linear",
            {
                **LATENT,
                "linear_attn_config": {
                    "full_attn_layers": [4, 8],
                    "num_heads": 32,
                    "head_dim": 128,
                },
            },
            "SSSLSSSL",
        ),
        ("minimax", {"attn_type_list": [0, 0, 0, 1]}, "SSSFSSSF"),
        ("lfm2", {"layer_types": ["conv", "conv", "full_attention", "conv"] * 2}, "SSFSSSFS"),
        ("recurrent_gemma", GRIFFIN, "SSWSSWSS"),
        ("gemma3n_text", SHARING, "WWFWW..."),
        ("hunyuan", {"use_cla": True, "cla_share_factor": 2}, "F.F.F.F."),
        ("bert", {}, "........"),
        ("brand_new", {"sliding_window": 128, "layer_types": ["linear_attention"] * 8}, "FFFFFFFF"),
    ],
)
def test_each_family_has_its_kinds_of_layers(
    kind: str, values: dict[str, Any], expected: str
) -> None:
    assert pattern(of_config(model_type=kind, num_hidden_layers=8, **values)) == expected


@pytest.mark.parametrize(
    ("architecture", "values", "expected"),
    [
        ("llama", {"attention__sliding_window": 4096}, "FFFFFFFF"),
        ("phi3", {"attention__sliding_window": 2047}, "FFFFFFFF"),
        ("gemma2", {}, "WFWFWFWF"),
        ("gemma3", {"attention__sliding_window": 1024}, "WWWWWFWW"),
        ("cohere2", {"attention__sliding_window": 4096}, "WWWFWWWF"),
        ("gpt-oss", {"attention__sliding_window": 128}, "WFWFWFWF"),
        ("llama4", {}, "WWWFWWWF"),
        ("smallthinker", {"attention__sliding_window": 4096}, "FWWWFWWW"),
        (
            "gemma4",
            {
                "attention__sliding_window": 512,
                "attention__sliding_window_pattern": [True, True, False, True] * 2,
                "attention__shared_kv_layers": 2,
            },
            "WWFWWW..",
        ),
        ("deci", {"attention__head_count_kv": [2, 0, 2, 0, 1, 1, 0, 2]}, "F.F.FF.F"),
        (
            "deepseek2",
            {
                "attention__head_count_kv": 1,
                "attention__key_length": 576,
                "attention__value_length": 512,
                "attention__key_length_mla": 192,
            },
            "LLLLLLLL",
        ),
        ("deepseek2", {"attention__key_length": 192, "attention__value_length": 128}, "FFFFFFFF"),
        ("glm4moe", {"nextn_predict_layers": 1}, "FFFFFFF."),
        ("bert", {}, "........"),
    ],
)
def test_each_gguf_architecture_has_its_kinds_of_layers(
    architecture: str, values: dict[str, Any], expected: str
) -> None:
    assert pattern(of_gguf(architecture, block_count=8, **values)) == expected


SSM = {"ssm__conv_kernel": 4, "ssm__inner_size": 128, "ssm__state_size": 16}
KV = [0, 0, 2, 0, 0, 0, 2, 0]


@pytest.mark.parametrize(
    ("architecture", "values", "expected"),
    [
        ("mamba", {**SSM, "attention__head_count": 0, "attention__head_count_kv": 0}, "SSSSSSSS"),
        ("jamba", {**SSM, "attention__head_count_kv": KV}, "SSFSSSFS"),
        ("granitehybrid", {**SSM, "attention__head_count_kv": KV}, "SSFSSSFS"),
        (
            "nemotron_h",
            {
                **SSM,
                "attention__head_count_kv": KV,
                "feed_forward_length": [0, 64, 0, 64, 0, 64, 0, 64],
            },
            "S.F.S.F.",
        ),
        ("falcon-h1", SSM, "BBBBBBBB"),
        ("qwen3next", SSM, "SSSFSSSF"),
        ("lfm2", {"attention__head_count_kv": KV, "shortconv__l_cache": 3}, "SSFSSSFS"),
        ("rwkv7", {"wkv__head_size": 64}, "SSSSSSSS"),
        (
            "kimi-linear",
            {
                "attention__head_count_kv": KV,
                "attention__key_length": 576,
                "attention__key_length_mla": 192,
                "kda__head_dim": 16,
                "ssm__conv_kernel": 4,
            },
            "SSLSSSLS",
        ),
    ],
)
def test_each_hybrid_gguf_architecture_keeps_fixed_states(
    architecture: str, values: dict[str, Any], expected: str
) -> None:
    assert pattern(of_gguf(architecture, block_count=8, **values)) == expected


class TestMeasured:
    """Sizes that llama.cpp printed."""

    def test_falcon_h1(self) -> None:
        """GeniePod/genie-claw issue 410: KV 768 MiB at 32,768 tokens, RS 72.98 MiB."""
        found = of_config(
            model_type="falcon_h1",
            num_hidden_layers=24,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=128,
            mamba_d_ssm=3072,
            mamba_d_state=256,
            mamba_n_heads=48,
            mamba_d_head=64,
            mamba_n_groups=1,
            mamba_d_conv=4,
        )
        assert cache_mebibytes(found, 32_768) == pytest.approx(768 + 72.98, abs=0.01)

    def test_mamba(self) -> None:
        """The same place: Mamba 1.4B keeps 14.25 MiB, however long the context."""
        found = of_config(
            model_type="mamba",
            hidden_size=2048,
            intermediate_size=4096,
            num_hidden_layers=48,
            state_size=16,
            conv_kernel=4,
        )
        assert cache_mebibytes(found, 256) == cache_mebibytes(found, 65_536) == 14.25

    def test_the_same_model_is_the_same_from_either_format(self) -> None:
        config = MODELS["Qwen 3 Next 80B-A3B"].config
        keys = model_keys(
            "qwen3next",
            block_count=48,
            embedding_length=2048,
            attention__head_count=16,
            attention__head_count_kv=2,
            attention__key_length=256,
            attention__value_length=256,
            ssm__conv_kernel=4,
            ssm__inner_size=4096,
            ssm__state_size=128,
            ssm__time_step_rank=32,
            ssm__group_count=16,
        )
        theirs = config_metadata("c", config)
        ours = gguf_metadata("g", keys, {}, TENSORS)
        for context in (256, 65_536):
            assert cache_mebibytes(ours, context) == cache_mebibytes(theirs, context)


class TestHeads:
    def test_pruned_models_have_their_own_heads_in_every_layer(self) -> None:
        blocks = [
            {"attention": {"n_heads_in_group": 8, "no_op": False}},
            {"attention": {"no_op": True}},
            {"attention": {"replace_with_linear": True}},
            {"attention": {"n_heads_in_group": 16}},
        ]
        found = of_config(model_type="nemotron-nas", num_hidden_layers=4, block_configs=blocks)
        assert [layer.kv_heads for layer in found.layers] == [4, 0, 0, 2]

    def test_openelm_lists_its_heads(self) -> None:
        values = {
            "model_type": "openelm",
            "num_transformer_layers": 3,
            "model_dim": 1280,
            "num_query_heads": [12, 12, 20],
            "num_kv_heads": [3, 3, 5],
            "head_dim": 64,
            "vocab_size": 32000,
            "max_context_length": 2048,
            "intermediate_size": 4096,
        }
        found = config_metadata("c", values)
        assert [layer.kv_heads for layer in found.layers] == [3, 3, 5]
        assert (found.attention_heads, found.kv_heads) == (20, 5)

    @pytest.mark.parametrize(
        ("values", "heads"),
        [
            ({"model_type": "gpt2", "n_layer": 2, "n_head": 12, "n_embd": 768}, (12, 12)),
            (
                {
                    "model_type": "falcon",
                    "num_hidden_layers": 2,
                    "num_attention_heads": 71,
                    "hidden_size": 4544,
                    "multi_query": True,
                },
                (71, 1),
            ),
            (
                {
                    "model_type": "dbrx",
                    "n_layers": 2,
                    "n_heads": 48,
                    "d_model": 6144,
                    "attn_config": {"kv_n_heads": 8},
                    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16},
                },
                (48, 8),
            ),
            (
                {
                    "model_type": "chatglm",
                    "num_layers": 2,
                    "num_attention_heads": 32,
                    "hidden_size": 4096,
                    "multi_query_group_num": 2,
                    "ffn_hidden_size": 13696,
                },
                (32, 2),
            ),
        ],
    )
    def test_older_names_are_understood(
        self, values: dict[str, Any], heads: tuple[int, int]
    ) -> None:
        found = config_metadata("c", {"vocab_size": 50000} | values)
        assert (found.attention_heads, found.kv_heads) == heads

    def test_explicit_lengths_win_over_the_hidden_size(self) -> None:
        (layer,) = {*of_config(head_dim=192, v_head_dim=128).layers}
        assert (layer.key_length, layer.value_length) == (192, 128)
        (layer,) = {
            Layer(key_length=one.key_length, value_length=one.value_length)
            for one in of_gguf(
                "llama", attention__key_length=192, attention__value_length=128
            ).layers
        }
        assert (layer.key_length, layer.value_length) == (192, 128)

    def test_sparse_attention_keeps_an_index_beside_the_latent(self) -> None:
        plain, sparse = (
            of_config(model_type=kind, **LATENT, **values)
            for kind, values in (("deepseek_v3", {}), ("deepseek_v32", {"index_head_dim": 128}))
        )
        assert sparse.layers[0].plain_key_bytes == 132  # vLLM: 128 of 8 bits and a 32-bit scale
        assert plain.layers[0].key_length == sparse.layers[0].key_length == 576

    def test_gemma_4_has_other_heads_in_its_global_layers(self) -> None:
        found = of_config(
            model_type="gemma4_text",
            num_hidden_layers=2,
            head_dim=256,
            global_head_dim=512,
            num_global_key_value_heads=4,
            sliding_window=1024,
            layer_types=["sliding_attention", "full_attention"],
        )
        assert [(x.kv_heads, x.key_length) for x in found.layers] == [(8, 256), (4, 512)]


class TestUnknown:
    def test_the_bound_of_an_unknown_architecture_is_no_less_than_the_known_one(self) -> None:
        for name, model in MODELS.items():
            config = dict(model.config.get("text_config", model.config))
            unknown = config_metadata(name, config | {"model_type": "brand_new"}, TENSORS)
            known = config_metadata(name, config, TENSORS)
            assert not unknown.known
            assert cache_mebibytes(unknown, 65_536) >= cache_mebibytes(known, 65_536) * 0.999

    def test_the_bound_takes_the_most_that_is_named(self) -> None:
        values = {"swa_num_key_value_heads": 16, "swa_head_dim": 192, "v_head_dim": 128}
        (layer,) = {*of_config(model_type="brand_new", **values).layers}
        assert (layer.kv_heads, layer.key_length, layer.value_length) == (16, 192, 192)

    def test_an_unknown_gguf_architecture_keeps_everything_and_says_so(self) -> None:
        values = {**SSM, "attention__head_count_kv": KV, "attention__sliding_window": 128}
        found = of_gguf("brand-new", block_count=8, **values)
        assert pattern(found) == "BBBBBBBB"
        made = estimate(found, engine="llama.cpp")
        assert isinstance(made, Estimate)
        assert made.cautious
        assert "brand-new is not known" in made.assumptions[0]

    def test_without_heads_nothing_bounds_it(self) -> None:
        found = of_gguf("brand-new", attention__head_count=0, attention__head_count_kv=0)
        assert "give `memory`" in str(found.unknown)

    def test_an_unknown_size_is_never_made_up(self) -> None:
        with pytest.raises(ModelUnreadable, match="nothing says how large it is"):
            config_metadata("c", llama(model_type="brand_new"))

    @pytest.mark.parametrize("kind", ["t5", "whisper"])
    def test_encoder_decoders_are_not_estimated(self, kind: str) -> None:
        assert "second cache" in str(config_metadata("c", llama(model_type=kind), TENSORS).unknown)

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"num_hidden_layers": 0}, "0 layers cannot be"),
            ({"num_hidden_layers": 10**9}, "layers cannot be"),
            ({"num_hidden_layers": "many"}, "'many', which is no size"),
            ({"num_key_value_heads": -8}, "-8, which is no size"),
            ({"num_key_value_heads": True}, "True, which is no size"),
            ({"hidden_size": None}, "has no hidden_size"),
            ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "1 layers of 32"),
            ({"model_type": "deci", "block_configs": [{}]}, "does not describe 32 layers"),
        ],
    )
    def test_values_that_cannot_be_are_refused(self, values: dict[str, Any], said: str) -> None:
        with pytest.raises(ModelUnreadable, match=said):
            of_config(**values)

    def test_layers_count_as_the_files_say_even_those_for_drafting(self) -> None:
        tensors = [
            TensorInfo(f"model.layers.{number}.mlp.up_proj.weight", (2, 2), "BF16", 8)
            for number in range(3)
        ]
        found = config_metadata("c", llama(num_hidden_layers=2), tensors)
        assert found.weight_bytes == 24
        assert Counter(pattern(found)) == {"F": 2, ".": 1}
        assert "beyond the model's own" in found.assumptions[0]
