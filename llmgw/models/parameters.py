"""Weights worked out from `config.json` alone, for a model whose files are not here.

Pure. Counts the matrices that a family has (projections, experts, Mamba, embeddings) and leaves
out norms and biases, which are below a hundredth. The checkpoints' own headers are exact and are
taken instead wherever they can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from llmgw.models.architectures import (
    Kind,
    head_counts,
    head_length,
    layer_count,
    layer_kinds,
    mamba_sizes,
)
from llmgw.models.config_file import HIDDEN, Config
from llmgw.models.dtypes import WEIGHT_BYTES
from llmgw.models.tensors import LayerWeights, Weights

_FEED_FORWARD = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
_EXPERT_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
_PLAIN_FEED_FORWARD = frozenset(
    {"gpt2", "gpt_neox", "gptj", "bloom", "falcon", "phi", "opt", "starcoder2", "mpt", "nemotron"}
    | {"gpt_bigcode", "nemotron_h", "codegen", "persimmon"}
)
_TIED_BY_DEFAULT = frozenset(
    {"gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "cohere", "cohere2", "gpt2"}
    | {"bloom", "falcon", "mpt", "gpt_bigcode", "lfm2", "gemma4_text"}
)


class Costs(NamedTuple):
    """Bytes of one weight: in linear layers, in experts, and in all else (embeddings, routers)."""

    linear: Fraction
    expert: Fraction
    plain: Fraction
    name: str


def count_weights(config: Config) -> Weights:
    """Return the bytes of the weights by where they are. Raises `ModelUnreadable`."""
    costs = weight_costs(config)
    kinds = layer_kinds(config, layer_count(config))
    layers = {n: _layer(config, kind, n, costs) for n, kind in enumerate(kinds)}
    embedding = config.number("vocab_size", "padded_vocab_size") * config.number(*HIDDEN)
    tied = config.flag("tie_word_embeddings", config.kind in _TIED_BY_DEFAULT)
    size = int(embedding * costs.plain)
    return Weights(layers=layers, embedding_bytes=size, head_bytes=0 if tied else size)


def weight_costs(config: Config) -> Costs:
    """Return what one weight takes, by the file's `torch_dtype` and `quantization_config`."""
    name = config.values.get("torch_dtype") or config.values.get("dtype")
    name = name or config.outer.get("torch_dtype") or config.outer.get("dtype") or "bfloat16"
    plain = WEIGHT_BYTES.get(str(name), Fraction(2))
    if plain < 2:
        plain = Fraction(2)
    quantised = config.part("quantization_config")
    method = str(quantised.get("quant_method") or "").lower()
    if not method:
        return Costs(plain, plain, plain, str(name))
    if method == "mxfp4":
        return Costs(plain, Fraction(17, 32), plain, "mxfp4")
    linear = _quantised(method, quantised)
    return Costs(linear or plain, linear or plain, plain, method if linear else str(name))


def _quantised(method: str, found: Mapping[str, Any]) -> Fraction | None:
    """Return the bytes of a quantised weight with its scales, or `None` where it is not known."""
    if method in {"fp8", "fbgemm_fp8"}:
        return Fraction(1) + Fraction(4, 128 * 128)
    if method == "bitsandbytes":
        return Fraction(1) if found.get("load_in_8bit") else Fraction(1, 2) + Fraction(1, 16)
    if method == "modelopt":
        return Fraction(9, 16) if "FP4" in str(found.get("quant_algo")) else Fraction(1)
    bits = found.get("bits", found.get("w_bit")) or _compressed_bits(found)
    if method not in {"awq", "gptq", "compressed-tensors"} or not isinstance(bits, int):
        return None
    group = found.get("group_size", found.get("q_group_size"))
    size = group if isinstance(group, int) and group > 0 else 128
    scales = Fraction(2, size) + Fraction(bits, 8 * size)
    return Fraction(bits, 8) + (scales if bits < 8 else 0)


def _compressed_bits(found: Mapping[str, Any]) -> int | None:
    groups = found.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        bits = weights.get("num_bits") if isinstance(weights, dict) else None
        if isinstance(bits, int) and 0 < bits <= 16:
            return bits
    return None


def _layer(config: Config, kind: Kind, number: int, costs: Costs) -> LayerWeights:
    layer = LayerWeights()
    if kind in ("full", "window", "both"):
        _add_attention(config, costs, layer)
    if kind in ("state", "both"):
        layer.weight_bytes += int(_state_weights(config) * costs.linear)
    dense, experts, router = _feed_forward(config, kind, number)
    layer.weight_bytes += int(dense * costs.linear + experts * costs.expert + router * costs.plain)
    layer.replicated_bytes += int(router * costs.plain)
    return layer


def _add_attention(config: Config, costs: Costs, layer: LayerWeights) -> None:
    if "kv_lora_rank" in config.values:
        shared, split = _latent_attention(config)
        layer.replicated_bytes += int(shared * costs.linear)
        layer.weight_bytes += int((shared + split) * costs.linear)
        return
    hidden, length = config.number(*HIDDEN), head_length(config)
    heads, kv_heads = head_counts(config)
    values = config.number("v_head_dim", default=length)
    gated = 2 if config.kind in {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"} else 1
    queries = hidden * heads * (gated * length + values)
    keys = int(hidden * kv_heads * (length + values) * costs.linear)
    layer.kv_projection_bytes += keys
    layer.weight_bytes += keys + int(queries * costs.linear)


def _latent_attention(config: Config) -> tuple[int, int]:
    """Return the weights of MLA: those that every rank keeps, and those that are split."""
    hidden, (heads, _) = config.number(*HIDDEN), head_counts(config)
    rank, rope = config.number("kv_lora_rank"), config.number("qk_rope_head_dim")
    plain, values = config.number("qk_nope_head_dim"), config.number("v_head_dim")
    queries = config.optional("q_lora_rank") or 0
    shared = hidden * (rank + rope + queries)
    up = (queries or hidden) * heads * (plain + rope)
    return shared, up + rank * heads * (plain + values) + heads * values * hidden


def _state_weights(config: Config) -> int:
    hidden, kind = config.number(*HIDDEN), config.kind
    if kind in {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}:
        keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
        heads = config.number("linear_num_value_heads")
        values = heads * config.number("linear_value_head_dim")
        return hidden * (2 * keys + 3 * values + 2 * heads)
    if kind == "kimi_linear":
        inner = config.within("linear_attn_config")
        return 4 * hidden * inner.number("num_heads") * inner.number("head_dim")
    if kind in {"minimax", "minimax_text_01"}:
        return 5 * hidden * head_counts(config)[0] * head_length(config)
    if kind in {"lfm2", "lfm2_moe"}:
        return 4 * hidden * hidden
    if kind == "recurrent_gemma":
        width = config.optional("lru_width") or hidden
        return 3 * hidden * width + 2 * width * width // 10
    inner_width, groups = mamba_sizes(config)
    states = config.number("mamba_d_state", "ssm_state_size", "state_size")
    if groups == 0:
        rank = config.number("mamba_dt_rank", "time_step_rank", default=-(-hidden // 16))
        return 3 * hidden * inner_width + inner_width * (2 * rank + 3 * states)
    heads = config.number("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", default=0)
    return hidden * (3 * inner_width + 2 * groups * states + heads)


def _feed_forward(config: Config, kind: Kind, number: int) -> tuple[int, int, int]:
    """Return the weights of dense matrices, of experts, and of the router."""
    hidden = config.number(*HIDDEN)
    matrices = 2 if config.kind in _PLAIN_FEED_FORWARD else 3
    if config.kind == "nemotron_h":
        if kind != "none":
            return 0, 0, 0
    elif config.kind in {"mamba", "mamba2", "falcon_mamba"}:
        return 0, 0, 0
    experts = config.number(*_EXPERTS, default=0)
    inner = config.within("ffn_config")  # dbrx
    if inner.values:
        experts = inner.number("moe_num_experts", default=0)
        width = inner.number("ffn_hidden_size")
        return 0, 3 * hidden * width * experts, hidden * experts
    if experts < 2 or not _has_experts(config, number):
        width = config.number("intermediate_size_mlp", *_FEED_FORWARD, default=4 * hidden)
        return matrices * hidden * width, 0, 0
    width = config.number(*_EXPERT_WIDTH)
    shared = config.number("shared_expert_intermediate_size", "shared_intermediate_size", default=0)
    shared = shared or config.number("n_shared_experts", "num_shared_experts", default=0) * width
    if config.kind in {"llama4", "llama4_text"}:
        shared = width
    return 3 * hidden * shared, 3 * hidden * width * experts, hidden * experts


def _has_experts(config: Config, number: int) -> bool:
    if number < config.number("first_k_dense_replace", default=0):
        return False
    if number in (config.items("mlp_only_layers") or ()):
        return False
    if config.kind == "jamba":
        period = config.number("expert_layer_period", default=1)
        return number % max(1, period) == config.number("expert_layer_offset", default=0)
    if config.kind in {"llama4", "llama4_text"}:
        listed = config.items("moe_layers")
        step = config.number("interleave_moe_layer_step", default=1)
        return number in listed if listed else (number + 1) % max(1, step) == 0
    step = config.number("decoder_sparse_step", "moe_layer_freq", default=1)
    return (number + 1) % max(1, step) == 0
