"""What the layers of a Hugging Face model keep of a sequence, read off its `config.json`.

Pure. Which layers attend to everything, to a window, or keep a fixed state is told by
`layer_types` in recent files and by a rule of the family in others. A family that is not in
`KNOWN` is taken as full attention in every layer: the cautious bound. Sources: the configuration
classes of `transformers` and the cache specifications of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from llmgw.errors import ModelUnreadable
from llmgw.models import recurrent
from llmgw.models.config_file import HEADS, HIDDEN, KV_HEADS, LAYER_COUNTS, Config
from llmgw.models.recurrent import State
from llmgw.models.types import MOST_LAYERS, Layer

Kind = Literal["full", "window", "state", "both", "none"]

_PLAIN = frozenset(
    {"llama", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"}
    | {"qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "gemma", "phi", "phi3"}
    | {"phimoe", "phi3small", "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "bloom", "falcon", "mpt"}
    | {"opt", "stablelm", "cohere", "dbrx", "olmo", "olmo2", "olmoe", "openelm", "granite"}
    | {"granitemoe", "granitemoeshared", "glm", "glm4", "glm4_moe", "chatglm", "internlm2"}
    | {"internlm3", "baichuan", "nemotron", "nemotron-nas", "deci", "deepseek", "arctic"}
    | {"smollm3", "ernie4_5", "ernie4_5_moe", "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan"}
    | {"seed_oss", "apertus", "arcee", "minicpm", "minimax_m2", "dots1", "exaone", "xverse"}
    | {"bitnet", "minicpm3", "persimmon", "codegen", "aquila", "orion"}
    | {"glm4v_text", "glm4v_moe_text", "solar"}
)
_LATENT = frozenset(
    {"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_linear", "glm4_moe_lite"}
    | {"glm_moe_dsa", "longcat_flash", "pangu_ultra_moe", "deepseek_vl_v2"}
)
_WINDOWED = frozenset(
    {"mistral", "mixtral", "ministral", "ministral3", "mistral3", "starcoder2", "gemma2"}
    | {"gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "cohere2"}
    | {"gpt_oss", "llama4", "llama4_text", "exaone4", "exaone_moe", "olmo3", "afmoe"}
    | {"smallthinker"}
)
_STATEFUL = frozenset(
    {"jamba", "bamba", "granitemoehybrid", "nemotron_h", "falcon_h1", "zamba2", "mamba", "mamba2"}
    | {"falcon_mamba", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "lfm2", "lfm2_moe"}
    | {"recurrent_gemma", "minimax", "minimax_text_01"}
)
_ENCODERS = frozenset(
    {"bert", "roberta", "xlm-roberta", "distilbert", "modernbert", "nomic_bert", "mpnet", "albert"}
    | {"electra", "deberta-v2", "camembert", "new"}
)
KNOWN = _PLAIN | _LATENT | _WINDOWED | _STATEFUL | _ENCODERS

_WORDS_BY_KIND: Mapping[Kind, tuple[str, ...]] = {
    "full": ("full_attention", "attention", "global", "*"),
    "window": ("sliding_attention", "chunked_attention", "local"),
    "state": ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "M"),
    "both": ("hybrid",),
    "none": ("mlp", "moe", "-", "E"),
}
_WORDS = {word: kind for kind, words in _WORDS_BY_KIND.items() for word in words}
_MAMBA_HEADS = ("mamba_n_heads", "n_mamba_heads", "mamba_num_heads", "num_heads")
_MAMBA_HEAD_LENGTHS = ("mamba_d_head", "mamba_headdim", "mamba_head_dim", "head_dim")
_PERIODS = {
    "gemma2": 2,
    "gpt_oss": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "cohere2": 4,
    "exaone4": 4,
    "afmoe": 4,
}
_ALWAYS_WINDOWED = frozenset({"mistral", "mixtral", "starcoder2", "ministral"})
_DEFAULT_WINDOW = {"gemma2": 4096, "gemma3_text": 4096, "gemma3": 4096, "gpt_oss": 128}


def layer_count(config: Config) -> int:
    """Return how many layers the model has. Raises `ModelUnreadable` for a number out of reach."""
    count = config.number(*LAYER_COUNTS)
    if not 0 < count <= MOST_LAYERS:
        raise ModelUnreadable(f"{config.source}: {count} layers cannot be")
    return count


def head_counts(config: Config) -> tuple[int, int]:
    """Return the numbers of attention heads and of KV heads (the most that a layer has)."""
    inner = config.within("attn_config")  # mpt and dbrx
    heads = config.number(*HEADS, "num_query_heads", default=0)
    if config.kind in {"mamba", "mamba2", "falcon_mamba"}:
        return 0, 0
    multi_query = config.flag("multi_query") and not config.flag("new_decoder_architecture")
    default = 1 if multi_query else heads
    if multi_query and config.kind in {"falcon", "gpt_bigcode"}:
        return heads, 1
    kv_heads = config.optional(*KV_HEADS)
    if kv_heads is None:
        kv_heads = inner.optional("kv_n_heads", "n_kv_heads")
    return heads, default if kv_heads is None else kv_heads


def head_length(config: Config) -> int:
    """Return the elements of one head: given, or the hidden size shared out among the heads."""
    heads, _ = head_counts(config)
    given = config.optional("head_dim", "kv_channels", "attention_head_dim")
    return given or config.number(*HIDDEN) // max(1, heads)


def layer_kinds(config: Config, count: int) -> list[Kind]:
    """Return what each layer does, from the list in the file or from the family's rule."""
    kind = config.kind
    if kind in _ENCODERS:
        return ["none"] * count
    if kind not in KNOWN:
        return ["full"] * count
    if kind == "falcon_h1":
        return ["both"] * count
    if kind in {"mamba", "mamba2", "falcon_mamba"}:
        return ["state"] * count
    listed = _listed_kinds(config, count)
    return listed if listed is not None else [_kind_by_rule(config, n) for n in range(count)]


def _listed_kinds(config: Config, count: int) -> list[Kind] | None:
    for name in ("layer_types", "layers_block_type", "hybrid_override_pattern", "block_types"):
        words: Any = config.values.get(name)
        if isinstance(words, list | str) and words:
            break
    else:
        return None
    if name == "block_types":
        words = [words[n % len(words)] for n in range(count)]
    if len(words) < count:
        said = f"{name} names {len(words)} layers of {count}"
        raise ModelUnreadable(f"{config.source}: {said}")
    kinds = [_WORDS.get(str(word), "full") for word in words[:count]]
    if config.kind == "recurrent_gemma":  # its attention is local everywhere
        return ["window" if kind == "full" else kind for kind in kinds]
    return kinds


def _kind_by_rule(config: Config, number: int) -> Kind:
    kind = config.kind
    if kind == "jamba":
        period, offset = config.number("attn_layer_period"), config.number("attn_layer_offset")
        return "full" if number % max(1, period) == offset else "state"
    if kind == "bamba":
        return "full" if number in (config.items("attn_layer_indices") or []) else "state"
    if kind in {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}:
        interval = config.number("full_attention_interval", default=4)
        return "full" if (number + 1) % max(1, interval) == 0 else "state"
    if kind == "kimi_linear":
        attending = config.part("linear_attn_config").get("full_attn_layers") or []
        return "full" if number + 1 in attending else "state"
    if kind in {"minimax", "minimax_text_01"}:
        listed = config.items("attn_type_list")
        return "full" if listed is None or listed[number % len(listed)] == 1 else "state"
    if kind in {"llama4", "llama4_text"}:
        return _llama4_kind(config, number)
    return "window" if _is_windowed(config, number) else "full"


def _llama4_kind(config: Config, number: int) -> Kind:
    listed = config.items("no_rope_layers")
    if listed is not None and number < len(listed):
        return "window" if listed[number] else "full"
    interval = config.number("no_rope_layer_interval", default=4) or 4
    return "full" if (number + 1) % interval == 0 else "window"


def _is_windowed(config: Config, number: int) -> bool:
    kind = config.kind
    if window_tokens(config) is None:
        return False
    if kind.startswith(("qwen2", "qwen3")):
        from_layer = config.number("max_window_layers", default=0)
        return config.flag("use_sliding_window") and number >= from_layer
    if kind in _ALWAYS_WINDOWED:
        return True
    period = _PERIODS.get(kind)
    given = config.values.get("sliding_window_pattern")
    if isinstance(given, str) and given:  # exaone4: "LLLG"
        return given[number % len(given)] == "L"
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        period = given
    return period is not None and (number + 1) % period != 0


def window_tokens(config: Config) -> int | None:
    """Return how many tokens a windowed or chunked layer sees, if the model has such layers."""
    if config.kind in {"llama4", "llama4_text"}:
        return config.optional("attention_chunk_size") or 8192
    given = config.optional("sliding_window", "sliding_window_size", "attention_window_size")
    return given or _DEFAULT_WINDOW.get(config.kind)


def layer_caches(config: Config) -> list[Layer]:
    """Return what each layer keeps, without weights. Raises `ModelUnreadable`."""
    count = layer_count(config)
    if config.kind not in KNOWN:
        return [_bound(config)] * count
    kinds = layer_kinds(config, count)
    blocks = config.items("block_configs")
    if blocks is not None:
        return [_pruned(config, block) for block in _padded(config, blocks, count)]
    sharing = config.number("num_kv_shared_layers", default=0)
    factor = config.number("cla_share_factor", default=1) if config.flag("use_cla") else 1
    caches = []
    for number, kind in enumerate(kinds):
        shares = number >= count - sharing or number % max(1, factor) != 0
        caches.append(_cache(config, kind, number, shares=shares))
    return caches


def _bound(config: Config) -> Layer:
    """Return the most that a layer of an unknown family can keep, by whatever is named like it."""
    heads, kv_heads = head_counts(config)
    length = head_length(config) if heads else 0
    named = [(name, value) for name, value in config.values.items() if isinstance(value, int)]
    more = [config.checked(n, v) for n, v in named if n.endswith(("_key_value_heads", "_kv_heads"))]
    longer = [config.checked(n, v) for n, v in named if n.endswith("head_dim")]
    if "kv_lora_rank" in config.values:
        more.append(heads)
        longer.append(config.number("qk_nope_head_dim") + config.number("qk_rope_head_dim"))
    most, longest = max(kv_heads, *more, 0), max(length, *longer, 0)
    return Layer(kv_heads=most, key_length=longest, value_length=longest)


def _cache(config: Config, kind: Kind, number: int, *, shares: bool) -> Layer:
    state = State(0, 0)
    if kind in ("state", "both"):
        state = layer_state(config)
    if kind in ("state", "none") or shares:
        return Layer(conv_elements=state.conv, state_elements=state.state)
    if config.kind in _LATENT:
        return _latent(config)
    return _attention(config, kind, number, state)


def _latent(config: Config) -> Layer:
    """Return the compressed cache of MLA: one latent and one rotated key, no values."""
    rank, rope = config.number("kv_lora_rank"), config.number("qk_rope_head_dim")
    index = config.number("index_head_dim", default=0)
    scales = 4 * -(-index // 128)
    return Layer(kv_heads=1, key_length=rank + rope, latent=True, plain_key_bytes=index + scales)


def _attention(config: Config, kind: Kind, number: int, state: State) -> Layer:
    _, kv_heads = head_counts(config)
    listed = config.items("num_key_value_heads") or config.items("num_kv_heads")
    if listed is not None and number < len(listed):
        kv_heads = config.checked("num_kv_heads", listed[number])
    key = head_length(config)
    value = config.number("v_head_dim", default=key)
    if "kv_lora_rank" in config.values:  # MLA that an engine keeps decompressed
        kv_heads = head_counts(config)[0]
        key = config.number("qk_nope_head_dim") + config.number("qk_rope_head_dim")
    if kind == "full" and config.kind in {"gemma4", "gemma4_text"}:
        key = value = config.optional("global_head_dim") or key
        kv_heads = config.optional("num_global_key_value_heads") or kv_heads
    return Layer(
        kv_heads=kv_heads,
        key_length=key,
        value_length=value,
        window=window_tokens(config) if kind == "window" else None,
        conv_elements=state.conv,
        state_elements=state.state,
    )


def _padded(config: Config, blocks: list[Any], count: int) -> list[Mapping[str, Any]]:
    if len(blocks) < count or not all(isinstance(block, dict) for block in blocks):
        raise ModelUnreadable(f"{config.source}: block_configs does not describe {count} layers")
    return blocks[:count]


def _pruned(config: Config, block: Mapping[str, Any]) -> Layer:
    """Return what a layer of a pruned Nemotron (DeciLM) keeps: its own KV heads, or nothing."""
    inner = block.get("attention")
    attention = inner if isinstance(inner, dict) else {}
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return Layer()
    heads, kv_heads = head_counts(config)
    given = attention.get("num_key_value_heads")
    shared = attention.get("n_heads_in_group")
    if given is not None:
        kv_heads = config.checked("num_key_value_heads", given)
    elif shared is not None:
        kv_heads = heads // max(1, config.checked("n_heads_in_group", shared))
    length = head_length(config)
    return Layer(kv_heads=kv_heads, key_length=length, value_length=length)


def layer_state(config: Config) -> State:
    """Return the fixed state of a layer that has one, by the names of its family."""
    kind = config.kind
    if kind in {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}:
        return recurrent.delta_net(
            config.number("linear_num_key_heads"),
            config.number("linear_num_value_heads"),
            config.number("linear_key_head_dim"),
            config.number("linear_value_head_dim"),
            config.number("linear_conv_kernel_dim", default=4),
        )
    if kind == "kimi_linear":
        inner = config.within("linear_attn_config")
        heads, length = inner.number("num_heads"), inner.number("head_dim")
        kernel = inner.number("short_conv_kernel_size", default=4)
        return recurrent.delta_net(heads, heads, length, length, kernel)
    if kind in {"minimax", "minimax_text_01"}:
        return recurrent.linear_attention(head_counts(config)[0], head_length(config))
    if kind in {"lfm2", "lfm2_moe"}:
        return recurrent.short_convolution(
            config.number(*HIDDEN), config.number("conv_L_cache", default=3)
        )
    if kind == "recurrent_gemma":
        width = config.optional("lru_width") or config.number(*HIDDEN)
        return recurrent.linear_recurrence(width, config.number("conv1d_width", default=4))
    return _mamba(config)


def _mamba(config: Config) -> State:
    inner, groups = mamba_sizes(config)
    states = config.number("mamba_d_state", "ssm_state_size", "state_size")
    kernel = config.number("mamba_d_conv", "conv_kernel", default=4)
    return recurrent.mamba(inner, states, kernel, groups)


def mamba_sizes(config: Config) -> tuple[int, int]:
    """Return the inner width of Mamba layers, and their groups (0: Mamba, not Mamba-2)."""
    kind = config.kind
    expanded = config.number("mamba_expand", "expand", default=2) * config.number(*HIDDEN)
    if kind == "jamba":
        return expanded, 0
    if kind in {"mamba", "falcon_mamba"}:
        return config.number("intermediate_size", default=expanded), 0
    heads = config.number(*_MAMBA_HEADS, default=0)
    length = config.number(*_MAMBA_HEAD_LENGTHS, default=0)
    inner = config.optional("mamba_d_ssm") or heads * length or expanded
    return inner, config.number("mamba_n_groups", "mamba_ngroups", "n_groups", default=1)
