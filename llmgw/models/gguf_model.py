"""From a GGUF header to metadata: what the keys of each architecture mean for memory.

Pure. The layers' caches are those that llama.cpp allocates; sources are its `load_arch_hparams`
of each architecture and the key names of the `gguf` package. A key that is absent has the meaning
that llama.cpp gives it, or makes the model's size unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from llmgw.errors import ModelUnreadable
from llmgw.models import recurrent
from llmgw.models.recurrent import State
from llmgw.models.tensors import Weights, sort_weights, weighted
from llmgw.models.types import MOST_LAYERS, Layer, Metadata, TensorInfo, Value

_LARGEST = 1 << 31

WINDOW_PERIODS: Mapping[str, tuple[int, bool]] = (
    {"gemma2": (2, False), "gemma3": (6, False), "gemma3n": (5, False), "cohere2": (4, False)}
    | {"gpt-oss": (2, False), "llama4": (4, False), "olmo2": (4, False), "exaone4": (4, False)}
    | {"exaone-moe": (4, False), "afmoe": (4, False), "smallthinker": (4, True)}
    | {"plamo3": (8, False)}
)
"""Of so many layers one sees everything and the others a window: the last one, or the first."""

_DEFAULT_WINDOWS = {"gemma2": 4096, "llama4": 8192}
_WINDOWED_BY_LIST = frozenset({"gemma4", "mimo2", "step35", "gemma3n"})

_MAMBA = frozenset({"mamba", "mamba2"})
_HYBRID = frozenset({"jamba", "granitehybrid", "nemotron_h", "nemotron_h_moe", "plamo2"})
_PARALLEL = frozenset({"falcon-h1"})
_DELTA = frozenset({"qwen3next", "qwen35", "qwen35moe"})
_SHORT_CONVOLUTION = frozenset({"lfm2", "lfm2moe"})
_RWKV: Mapping[str, int] = {"rwkv6": 2, "rwkv6qwen2": 1, "rwkv7": 2, "arwkv7": 1}
_ENCODERS = frozenset(
    {"bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2"}
    | {"jina-bert-v3", "eurobert", "t5encoder", "gemma-embedding"}
)
_ATTENTION = frozenset(
    {"llama", "deci", "falcon", "baichuan", "grok", "gpt2", "gptj", "gptneox", "mpt", "starcoder"}
    | {"refact", "bloom", "stablelm", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe"}
    | {"qwen3vl", "qwen3vlmoe", "phi2", "phi3", "phimoe", "plamo", "codeshell", "orion"}
    | {"internlm2", "minicpm", "minicpm3", "gemma", "starcoder2", "xverse", "command-r", "dbrx"}
    | {"olmo", "olmoe", "openelm", "arctic", "deepseek", "deepseek2", "deepseek32", "chatglm"}
    | {"glm4", "glm4moe", "glm-dsa", "bitnet", "jais", "jais2", "nemotron", "exaone", "granite"}
    | {"granitemoe", "chameleon", "plm", "bailingmoe", "bailingmoe2", "dots1", "arcee"}
    | {"ernie4_5", "ernie4_5-moe", "hunyuan-moe", "hunyuan-dense", "hunyuan_vl", "smollm3"}
    | {"dream", "llada", "llada-moe", "seed_oss", "grovemoe", "apertus", "minimax-m2", "cogvlm"}
    | {"rnd1", "pangu-embedded", "mistral3", "mistral4", "paddleocr", "maincoder"}
    | {"deepseek2-ocr", "llama-embed"}
)
KNOWN = (
    _ATTENTION
    | WINDOW_PERIODS.keys()
    | _WINDOWED_BY_LIST
    | _MAMBA
    | _HYBRID
    | _PARALLEL
    | _DELTA
    | _SHORT_CONVOLUTION
    | _RWKV.keys()
    | _ENCODERS
    | {"kimi-linear"}
)


class Keys:
    """The keys of one file, read as numbers of its own architecture."""

    def __init__(self, source: str, keys: Mapping[str, Value]) -> None:
        self.source = source
        self._keys = keys
        found = keys.get("general.architecture")
        if not isinstance(found, str) or not found:
            raise ModelUnreadable(f"{source}: has no general.architecture; it is no model's file")
        self.architecture = found

    def number(self, name: str, default: int | None = None) -> int:
        """Return a whole number. Raises `ModelUnreadable` if it is none, or absent without one."""
        value = self._value(name)
        if isinstance(value, list):
            value = max((self._checked(name, item) for item in value), default=0)
        if value is None:
            if default is None:
                raise ModelUnreadable(f"{self.source}: has no {self._full(name)}")
            return default
        return self._checked(name, value)

    def each(self, name: str, count: int, default: int | None = None) -> list[int]:
        """Return one number for each layer: an array of so many, or one for all of them."""
        value = self._value(name)
        if isinstance(value, list):
            if len(value) < count:
                said = f"has {len(value)} items for {count} layers"
                raise ModelUnreadable(f"{self.source}: {self._full(name)} {said}")
            return [self._checked(name, item) for item in value[:count]]
        return [self.number(name, default)] * count

    def is_list(self, name: str) -> bool:
        """Return whether the key holds one item for each layer."""
        return isinstance(self._value(name), list)

    def has(self, name: str) -> bool:
        """Return whether the key is there."""
        return self._value(name) is not None

    def _value(self, name: str) -> Value:
        return self._keys.get(self._full(name))

    def _full(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def _checked(self, name: str, value: Value) -> int:
        if isinstance(value, int) and 0 <= value < _LARGEST:
            return int(value)
        said = f"is {value!r:.40}, which is no size"
        raise ModelUnreadable(f"{self.source}: {self._full(name)} {said}")


def gguf_metadata(
    source: str,
    keys: Mapping[str, Value],
    lengths: Mapping[str, int],
    tensors: Sequence[TensorInfo],
) -> Metadata:
    """Return the metadata of a model from the keys and tensors of its file, or of all its parts.

    Raises `ModelUnreadable` for keys that are missing, contradict each other or cannot be.
    """
    read = Keys(source, keys)
    weights = sort_weights(tensors)
    unknown = _not_estimated(read.architecture, bool(tensors))
    layers: tuple[Layer, ...] = ()
    known = read.architecture in KNOWN
    if unknown is None:
        layers = _layers(read, weights, known)
        if not known and not any(layer.kv_heads for layer in layers):
            unknown = (
                f"the architecture {read.architecture} is not known to this version, and the file "
                "names no heads to bound its cache by; give `memory`"
            )
    heads = read.number("attention.head_count", 0)
    kv_heads = max((layer.kv_heads for layer in layers), default=0)
    return Metadata(
        source=source,
        format="gguf",
        architecture=read.architecture,
        known=known,
        attention_heads=heads or None,
        kv_heads=kv_heads or None,
        context_length=read.number("context_length", 0) or None,
        hidden_length=read.number("embedding_length", 0),
        feed_forward_length=_widest_feed_forward(read),
        vocabulary=_vocabulary(read, lengths, tensors),
        weight_dtype=_main_dtype(tensors),
        layers=layers,
        embedding_bytes=weights.embedding_bytes,
        head_bytes=weights.head_bytes,
        other_bytes=weights.total_bytes - _counted(layers, weights),
        unknown=unknown,
    )


def _not_estimated(architecture: str, has_tensors: bool) -> str | None:
    if architecture == "clip":
        return "it is a vision projector, which serves nothing alone; give the model it belongs to"
    if architecture == "t5":
        return "encoder-decoder models keep a second cache, which is not estimated; give `memory`"
    return None if has_tensors else "the file holds no weights"


def _counted(layers: Sequence[Layer], weights: Weights) -> int:
    in_layers = sum(layer.weight_bytes for layer in layers)
    return in_layers + weights.embedding_bytes + weights.head_bytes


def _layers(keys: Keys, weights: Weights, known: bool) -> tuple[Layer, ...]:
    count = keys.number("block_count")
    if not 0 < count <= MOST_LAYERS:
        raise ModelUnreadable(f"{keys.source}: {count} layers cannot be")
    caches = _caches(keys, count, known)
    return tuple(weighted(cache, weights, number) for number, cache in enumerate(caches))


def _caches(keys: Keys, count: int, known: bool) -> list[Layer]:
    arch = keys.architecture
    if arch in _ENCODERS:
        return [Layer()] * count
    if not known:
        return [_bound(keys)] * count
    windows, states, holding = _windows(keys, count), _states(keys, count), _holding(keys, count)
    heads = keys.each("attention.head_count", count, 0)
    kv_heads = keys.each("attention.head_count_kv", count, max(heads))
    caches = []
    for number in range(count):
        state = states[number]
        attends = number < holding and (state is None or arch in _PARALLEL)
        cache = _attention(keys, kv_heads[number], windows[number]) if attends else Layer()
        caches.append(_with_state(cache, state))
    return caches


def _bound(keys: Keys) -> Layer:
    """Return the most that a layer of an unknown architecture can keep."""
    heads = keys.number("attention.head_count", 0)
    kv_heads = keys.number("attention.head_count_kv", heads)
    if kv_heads == 0:
        return Layer()
    default = keys.number("embedding_length") // max(1, heads)
    state = _mamba(keys) if keys.has("ssm.inner_size") else None
    whole = Layer(
        kv_heads=kv_heads,
        key_length=keys.number("attention.key_length", default),
        value_length=keys.number("attention.value_length", default),
    )
    return _with_state(whole, state)


def _with_state(cache: Layer, state: State | None) -> Layer:
    if state is None:
        return cache
    return replace(cache, conv_elements=state.conv, state_elements=state.state)


def _attention(keys: Keys, kv_heads: int, window: int | None) -> Layer:
    """Return what an attention layer keeps; one without KV heads (deci, openelm) keeps nothing."""
    if kv_heads == 0:
        return Layer()
    default = keys.number("embedding_length") // max(1, keys.number("attention.head_count"))
    key = keys.number("attention.key_length", default)
    value = keys.number("attention.value_length", default)
    if keys.has("attention.key_length_mla"):
        index = keys.number("attention.indexer.key_length", 0)
        return Layer(kv_heads=1, key_length=key, latent=True, plain_key_bytes=2 * index)
    if window is not None:
        key = keys.number("attention.key_length_swa", key)
        value = keys.number("attention.value_length_swa", value)
    return Layer(kv_heads=kv_heads, key_length=key, value_length=value, window=window)


def _windows(keys: Keys, count: int) -> list[int | None]:
    arch = keys.architecture
    default = _DEFAULT_WINDOWS.get(arch, 0)
    window = keys.number("attention.sliding_window", default)
    if arch == "llama4" and window:
        window = default
    if not window or arch not in WINDOW_PERIODS.keys() | _WINDOWED_BY_LIST:
        return [None] * count
    if arch == "exaone4" and count < 64:
        return [None] * count
    if keys.is_list("attention.sliding_window_pattern"):
        listed = keys.each("attention.sliding_window_pattern", count)
        return [window if here else None for here in listed]
    if arch not in WINDOW_PERIODS:
        return [None] * count
    period, first = WINDOW_PERIODS[arch]
    period = keys.number("attention.sliding_window_pattern", period) or period
    whole = 0 if first else period - 1
    return [None if number % period == whole else window for number in range(count)]


def _holding(keys: Keys, count: int) -> int:
    """Return how many layers from the first hold a cache: later ones share it, or only draft."""
    shared = keys.number("attention.shared_kv_layers", 0)
    drafting = keys.number("nextn_predict_layers", 0)
    return max(0, count - shared - drafting)


def _states(keys: Keys, count: int) -> list[State | None]:
    arch = keys.architecture
    if arch in _MAMBA:
        return [_mamba(keys)] * count
    if arch in _RWKV:
        width, head = keys.number("embedding_length"), keys.number("wkv.head_size")
        shifts = keys.number("token_shift_count", _RWKV[arch])
        return [recurrent.rwkv(width, head, shifts)] * count
    if arch in _PARALLEL:
        return [_mamba(keys)] * count
    if arch in _DELTA:
        interval = max(1, keys.number("full_attention_interval", 4))
        return [None if (n + 1) % interval == 0 else _mamba(keys) for n in range(count)]
    kv_heads = keys.each("attention.head_count_kv", count, 1)
    if arch in _HYBRID:
        feeds = keys.each("feed_forward_length", count, 0)
        if not arch.startswith("nemotron"):  # there a layer is one thing: attention, Mamba or this
            feeds = [0] * count
        return [None if kv or ff else _mamba(keys) for kv, ff in zip(kv_heads, feeds, strict=True)]
    if arch in _SHORT_CONVOLUTION:
        width, kernel = keys.number("embedding_length"), keys.number("shortconv.l_cache")
        return [None if kv else recurrent.short_convolution(width, kernel) for kv in kv_heads]
    if arch == "kimi-linear":
        heads, length = keys.number("attention.head_count"), keys.number("kda.head_dim")
        state = recurrent.delta_net(heads, heads, length, length, keys.number("ssm.conv_kernel"))
        return [None if kv else state for kv in kv_heads]
    return [None] * count


def _mamba(keys: Keys) -> State:
    return recurrent.mamba(
        keys.number("ssm.inner_size"),
        keys.number("ssm.state_size"),
        keys.number("ssm.conv_kernel"),
        keys.number("ssm.group_count", 0),
    )


def _widest_feed_forward(keys: Keys) -> int:
    dense = keys.number("feed_forward_length", 0)
    experts = keys.number("expert_feed_forward_length", 0) * keys.number("expert_used_count", 1)
    return max(dense, experts)


def _vocabulary(keys: Keys, lengths: Mapping[str, int], tensors: Sequence[TensorInfo]) -> int:
    for tensor in tensors:
        if tensor.name == "token_embd.weight" and len(tensor.shape) == 2:
            return tensor.shape[1]
    return lengths.get("tokenizer.ggml.tokens", 0) or keys.number("vocab_size", 0)


def _main_dtype(tensors: Sequence[TensorInfo]) -> str:
    """Return the type that most of the bytes are in."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.bytes
    return max(sizes, key=lambda name: sizes[name], default="unknown").lower()
