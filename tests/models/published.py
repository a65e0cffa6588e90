"""Well-known models: what their `config.json` says, and sizes that others published or measured.

The configuration values are those of the models' repositories at Hugging Face, cut down to what
has a meaning for memory. Every size names where it is from. What somebody measured with a real
engine is marked so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10

INDEX = "metadata.total_size in model.safetensors.index.json of the repository"
HUB_PAGE = "parameters on the repository's page at Hugging Face, in the type of its weights"
KERAS = "`params` of the KerasHub preset, in 16 bits"
LLAMA_TABLE = "table of KV cache sizes in huggingface.co/blog/llama31 (128k: 128,000 tokens)"
INSIGHTS = "table 1 of Insights into DeepSeek-V3 (arXiv 2505.09343): KV cache per token"
JAMBA_PAPER = "table 1 of the Jamba paper (arXiv 2403.19887): KV cache at 256K tokens, 16 bits"


class Cache(NamedTuple):
    """What a cache of so many tokens takes, and who says so."""

    tokens: int
    bytes: float
    source: str


class Model(NamedTuple):
    """One model: its configuration, its weights in bytes with their source, and its cache."""

    config: Mapping[str, Any]
    weights_bytes: float
    weights_source: str
    cache: Cache


def llama(**values: object) -> dict[str, Any]:
    """Return the configuration of a Llama, by default that of 3.1 8B."""
    return {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    } | values


MODELS: Mapping[str, Model] = {
    "Llama 3.1 8B": Model(llama(), 16_060_522_496, INDEX, Cache(128_000, 15.62 * GIB, LLAMA_TABLE)),
    "Llama 3.1 70B": Model(
        llama(
            hidden_size=8192,
            intermediate_size=28672,
            num_hidden_layers=80,
            num_attention_heads=64,
        ),
        141_107_412_992,
        INDEX,
        Cache(128_000, 39.06 * GIB, LLAMA_TABLE),
    ),
    "Llama 3.1 405B": Model(
        llama(
            hidden_size=16384,
            intermediate_size=53248,
            num_hidden_layers=126,
            num_attention_heads=128,
        ),
        405.85e9 * 2,
        HUB_PAGE,
        Cache(1, 516_096, INSIGHTS),
    ),
    "Qwen 2.5 7B": Model(
        llama(
            model_type="qwen2",
            hidden_size=3584,
            intermediate_size=18944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            vocab_size=152064,
            max_position_embeddings=32768,
            sliding_window=131072,
            use_sliding_window=False,
            max_window_layers=28,
        ),
        15_231_233_024,
        INDEX,
        Cache(4096, 224 * MIB, "28 layers of 4 heads of 128, by Qwen's model card"),
    ),
    "Qwen 2.5 72B": Model(
        llama(
            model_type="qwen2",
            hidden_size=8192,
            intermediate_size=29568,
            num_hidden_layers=80,
            num_attention_heads=64,
            vocab_size=152064,
        ),
        72_706_203_648 * 2,
        HUB_PAGE,
        Cache(1, 327_680, INSIGHTS),
    ),
    "Qwen 3 30B-A3B": Model(
        llama(
            model_type="qwen3_moe",
            hidden_size=2048,
            intermediate_size=6144,
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            head_dim=128,
            num_hidden_layers=48,
            num_key_value_heads=4,
            vocab_size=151936,
        ),
        61_064_245_248,
        INDEX,
        Cache(32_768, 3 * GIB, "98,304 bytes a token: vLLM's page of 16 tokens over 48 layers"),
    ),
    "Qwen 3 Next 80B-A3B": Model(
        llama(
            model_type="qwen3_next",
            hidden_size=2048,
            intermediate_size=5120,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            num_experts=512,
            num_experts_per_tok=10,
            decoder_sparse_step=1,
            head_dim=256,
            num_hidden_layers=48,
            num_attention_heads=16,
            num_key_value_heads=2,
            full_attention_interval=4,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_conv_kernel_dim=4,
            vocab_size=151936,
            max_position_embeddings=262144,
        ),
        80e9 * 2,
        "the model card: 80B in total",
        Cache(262_144, 6 * GIB, "12 of 48 layers of 2 heads of 256: n_embd_k_gqa 512 in llama.cpp"),
    ),
    "Mistral 7B v0.3": Model(
        llama(model_type="mistral", vocab_size=32768, sliding_window=None),
        7_248_023_552 * 2,
        HUB_PAGE,
        Cache(262_144, 32 * GIB, JAMBA_PAPER),
    ),
    "Mixtral 8x7B": Model(
        llama(
            model_type="mixtral",
            vocab_size=32000,
            num_local_experts=8,
            num_experts_per_tok=2,
            sliding_window=None,
        ),
        93_405_585_408,
        INDEX,
        Cache(262_144, 32 * GIB, JAMBA_PAPER),
    ),
    "Jamba v0.1": Model(
        llama(
            model_type="jamba",
            vocab_size=65536,
            num_experts=16,
            num_experts_per_tok=2,
            attn_layer_period=8,
            attn_layer_offset=4,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=256,
            max_position_embeddings=262144,
        ),
        52e9 * 2,
        "table 1 of the Jamba paper (arXiv 2403.19887): 52B parameters available",
        Cache(262_144, 4 * GIB, JAMBA_PAPER),
    ),
    "Gemma 2 27B": Model(
        llama(
            model_type="gemma2",
            hidden_size=4608,
            intermediate_size=36864,
            head_dim=128,
            num_hidden_layers=46,
            num_key_value_heads=16,
            vocab_size=256000,
            sliding_window=4096,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
        ),
        27_227_128_320 * 2,
        KERAS,
        Cache(4096, 46 * 16 * 128 * 2 * 2 * 4096, "46 layers of 16 heads of 128, Gemma 2's report"),
    ),
    "Gemma 3 27B": Model(
        {
            "model_type": "gemma3",
            "torch_dtype": "bfloat16",
            "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
            "text_config": llama(
                model_type="gemma3_text",
                hidden_size=5376,
                intermediate_size=21504,
                head_dim=128,
                num_hidden_layers=62,
                num_attention_heads=32,
                num_key_value_heads=16,
                vocab_size=262208,
                sliding_window=1024,
                sliding_window_pattern=6,
                tie_word_embeddings=True,
            ),
        },
        27_432_406_640 * 2,
        KERAS,
        Cache(
            131_072,
            10 * GIB + 52 * 1536 * 16 * 128 * 2 * 2,
            "10 global layers whole and 52 local ones of 1,024 + 512 cells, by llama.cpp's rule",
        ),
    ),
    "Gemma 3 270M": Model(
        llama(
            model_type="gemma3_text",
            hidden_size=640,
            intermediate_size=2048,
            head_dim=256,
            num_hidden_layers=18,
            num_attention_heads=4,
            num_key_value_heads=1,
            vocab_size=262144,
            sliding_window=512,
            sliding_window_pattern=6,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
        ),
        268_098_176 * 2,
        KERAS,
        Cache(4096, 27 * MIB, "measured with llama-server: unslothai/unsloth pull request 5225"),
    ),
    "DeepSeek V3": Model(
        llama(
            model_type="deepseek_v3",
            hidden_size=7168,
            intermediate_size=18432,
            moe_intermediate_size=2048,
            n_routed_experts=256,
            n_shared_experts=1,
            num_experts_per_tok=8,
            first_k_dense_replace=3,
            moe_layer_freq=1,
            num_hidden_layers=61,
            num_attention_heads=128,
            num_key_value_heads=128,
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            vocab_size=129280,
            max_position_embeddings=163840,
            quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
        ),
        688_586_727_753,
        "size of the repository's files, the layer for drafting included",
        Cache(163_840, 10.72 * GIB, "measured with llama.cpp: provide.ai on DeepSeek V3.2"),
    ),
    "gpt-oss 20B": Model(
        llama(
            model_type="gpt_oss",
            hidden_size=2880,
            intermediate_size=2880,
            head_dim=64,
            num_hidden_layers=24,
            num_attention_heads=64,
            vocab_size=201088,
            num_local_experts=32,
            num_experts_per_tok=4,
            sliding_window=128,
            layer_types=["sliding_attention", "full_attention"] * 12,
            quantization_config={"quant_method": "mxfp4"},
        ),
        13_761_264_768,
        INDEX,
        Cache(
            131_072,
            3 * GIB + 12 * 768 * 8 * 64 * 2 * 2,
            "12 global layers whole and 12 local ones of 128 + 512 cells, by llama.cpp's rule",
        ),
    ),
    "gpt-oss 120B": Model(
        llama(
            model_type="gpt_oss",
            hidden_size=2880,
            intermediate_size=2880,
            head_dim=64,
            num_hidden_layers=36,
            num_attention_heads=64,
            vocab_size=201088,
            num_local_experts=128,
            num_experts_per_tok=4,
            sliding_window=128,
            layer_types=["sliding_attention", "full_attention"] * 18,
            quantization_config={"quant_method": "mxfp4"},
        ),
        65_248_815_744,
        INDEX,
        Cache(
            131_072,
            4.5 * GIB + 18 * 768 * 8 * 64 * 2 * 2,
            "18 global layers whole and 18 local ones of 128 + 512 cells, by llama.cpp's rule",
        ),
    ),
    "Phi 3 mini": Model(
        llama(
            model_type="phi3",
            hidden_size=3072,
            intermediate_size=8192,
            num_key_value_heads=32,
            vocab_size=32064,
            max_position_embeddings=4096,
            sliding_window=2047,
        ),
        3_821_079_552 * 2,
        HUB_PAGE,
        Cache(4096, 1536 * MIB, "32 layers of 32 heads of 96, as llama.cpp prints it for 4,096"),
    ),
    "Phi 4": Model(
        llama(
            model_type="phi3",
            hidden_size=5120,
            intermediate_size=17920,
            num_hidden_layers=40,
            num_attention_heads=40,
            num_key_value_heads=10,
            vocab_size=100352,
            max_position_embeddings=16384,
            sliding_window=None,
        ),
        29_319_014_400,
        INDEX,
        Cache(16_384, 3200 * MIB, "40 layers of 10 heads of 128, by the model card"),
    ),
}
