"""Memory estimates: what one replica of a model needs on each of its devices, part by part.

Pure. The sum of the weights that lie on the fullest device, the cache for the context and the
sequences that were asked for, and what the engine takes besides (`overheads` has the sources).
What cannot be known is `Unknown`, never zero. The catalog, the planner and views call it.

The cache of a layer per token is KV heads x (key length + value length), in the type of each half.
Not so: MLA keeps one latent per token and no values (DeepSeek-V2, arXiv 2405.04434, 2.1.3), whole
on every rank; a windowed layer keeps its window and what is being computed (llama.cpp's
`llama_kv_cache_iswa`, vLLM's `SlidingWindowSpec`); a recurrent layer keeps one fixed state per
sequence. KV heads are repeated where there are more ranks than heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llmgw.models.dtypes import Packing, cache_type
from llmgw.models.overheads import (
    ENGINES,
    GRANULARITY,
    LLAMA_SLOTS,
    SAMPLED_SEQUENCES,
    STATIC_SHARE,
    SWA_SHARE,
    engine_parts,
)
from llmgw.models.types import Estimate, Layer, MemoryPart, Metadata, Unknown

MOST_RANKS = 4_096
LARGEST_CONTEXT = 1 << 30

_STATE_BYTES = 4
"""Engines keep recurrent states in 32 bits, or may (vLLM's `--mamba-ssm-cache-dtype`)."""


class Load(NamedTuple):
    """What a cache must hold: so many tokens of each of so many sequences."""

    engine: str
    context: int
    parallel: int
    slots: int
    """Sequences that exist at once. llama.cpp's share one cache where none were asked for."""


class Split(NamedTuple):
    """How a model is cut: within layers over `tp` ranks, and by layers over `pp` stages."""

    tp: int
    pp: int
    cache_tp: int
    """Ranks that share the cache: llama.cpp keeps it whole on one device."""


class Halves(NamedTuple):
    """How keys and values are stored."""

    keys: Packing
    values: Packing


class Stage(NamedTuple):
    """The weights and the cache on one device of a pipeline stage, in bytes."""

    weights: int
    cache: int


def estimate(
    metadata: Metadata,
    *,
    engine: str,
    context: int | None = None,
    parallel: int | None = None,
    cache_key_dtype: str | None = None,
    cache_value_dtype: str | None = None,
    tp: int = 1,
    pp: int = 1,
    gpu_memory_fraction: float | None = None,
    processor: bool = False,
) -> Estimate | Unknown:
    """Return what one replica needs on each of its devices, or why that is not known.

    `context` is the tokens of one sequence (without it: as many as the model was made for),
    `parallel` how many sequences are held whole at once (without it: one). The cache types are in
    any engine's words. `gpu_memory_fraction` is the part of a device within which the estimate
    must be found. `processor`: there is no CUDA context there.
    """
    why = _impossible(metadata, engine, context, parallel, tp, pp, gpu_memory_fraction)
    if why is not None:
        return Unknown(reason=why)
    halves = _halves(cache_key_dtype, cache_value_dtype, metadata)
    if isinstance(halves, Unknown):
        return halves
    tokens = context or metadata.context_length or 0
    slots = parallel or (LLAMA_SLOTS if engine == "llama.cpp" else 1)
    load = Load(engine, tokens, parallel or 1, slots)
    split = Split(tp, pp, 1 if engine == "llama.cpp" else tp)
    fullest = max(_stages(metadata, load, split, halves), key=sum)
    parts = (
        _weights_part(metadata, fullest.weights, split),
        _cache_part(fullest.cache, load, halves),
        *engine_parts(
            metadata,
            engine=engine,
            context=tokens,
            sequences=(parallel or SAMPLED_SEQUENCES) if engine != "llama.cpp" else load.parallel,
            ranks=tp * pp,
            tp=tp,
            shard_bytes=fullest.weights,
            processor=processor,
        ),
    )
    return Estimate(
        parts=parts + _reserve(engine, parts, gpu_memory_fraction),
        context=tokens,
        parallel=load.parallel,
        tp=tp,
        pp=pp,
        cautious=not metadata.known,
        assumptions=_assumptions(metadata, context, parallel),
    )


def largest_context(
    metadata: Metadata,
    memory_bytes: int,
    *,
    engine: str,
    parallel: int | None = None,
    cache_key_dtype: str | None = None,
    cache_value_dtype: str | None = None,
    tp: int = 1,
    pp: int = 1,
    gpu_memory_fraction: float | None = None,
    processor: bool = False,
) -> int | None:
    """Return the longest context whose estimate is at most `memory_bytes` on each device.

    No longer than the model was made for. `None` where nothing fits, or nothing is known. With
    `gpu_memory_fraction` only that part of the memory counts.
    """
    usable_bytes = int(memory_bytes * (gpu_memory_fraction or 1))

    def fits(context: int) -> bool:
        found = estimate(
            metadata,
            engine=engine,
            context=context,
            parallel=parallel,
            cache_key_dtype=cache_key_dtype,
            cache_value_dtype=cache_value_dtype,
            tp=tp,
            pp=pp,
            gpu_memory_fraction=gpu_memory_fraction,
            processor=processor,
        )
        return isinstance(found, Estimate) and found.total_bytes <= usable_bytes

    if not fits(1):
        return None
    low, high = 1, metadata.context_length or LARGEST_CONTEXT
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _impossible(
    metadata: Metadata,
    engine: str,
    context: int | None,
    parallel: int | None,
    tp: int,
    pp: int,
    fraction: float | None,
) -> str | None:
    """Return why there can be no estimate, or `None`."""
    if engine not in ENGINES:
        return f"nothing is known of what the engine {engine} needs; give `memory`"
    if metadata.unknown is not None:
        return f"{metadata.source}: {metadata.unknown}"
    if metadata.weight_bytes <= 0:
        return f"{metadata.source}: the size of the weights is not known"
    if not 0 < tp * pp <= MOST_RANKS or min(tp, pp) < 1:
        return f"tp {tp} x pp {pp} is no number of devices"
    if metadata.layers and pp > len(metadata.layers):
        return f"pp {pp} is more than the model's {len(metadata.layers)} layers"
    if context is None and not metadata.context_length:
        return f"{metadata.source}: names no context length; give `context`"
    if not 0 < (context or 1) <= LARGEST_CONTEXT or (parallel or 1) < 1:
        sequences = "" if parallel is None else f" and {parallel} sequences"
        return f"a context of {context or metadata.context_length} tokens{sequences} cannot be"
    if fraction is not None and not 0 < fraction <= 1:
        return f"a gpu memory fraction of {fraction} cannot be"
    return None


def _halves(keys: str | None, values: str | None, metadata: Metadata) -> Halves | Unknown:
    found = []
    for half, name in (("keys", keys), ("values", values)):
        own = "f32" if metadata.weight_dtype in {"float32", "f32"} else "f16"
        packing = cache_type(own if name in (None, "auto") else str(name))
        if packing is None:
            return Unknown(reason=f"the cache type {name!r:.40} of the {half} is not known")
        found.append(packing)
    return Halves(*found)


def _stages(metadata: Metadata, load: Load, split: Split, halves: Halves) -> Iterator[Stage]:
    """Yield what lies on one device of each pipeline stage: layers in order, ends where they are.

    The token embeddings are on the first stage and the output matrix on the last; a tied one is
    on both. What is in no layer (a vision tower) is whole on the first stage, as side files are.
    """
    layers, last = metadata.layers, split.pp - 1
    each, more = divmod(len(layers), split.pp)
    start = 0
    for number in range(split.pp):
        end = start + each + (number < more)
        weights = sum(_weights_on_rank(layer, split.tp) for layer in layers[start:end])
        cache = sum(
            _cache_on_rank(layer, load, split.cache_tp, halves) for layer in layers[start:end]
        )
        if number == 0:
            weights += _shared_out(metadata.embedding_bytes, split.tp)
            weights += metadata.other_bytes + metadata.side_bytes
        if number == last:
            tied = metadata.embedding_bytes if last and not metadata.head_bytes else 0
            weights += _shared_out(metadata.head_bytes + tied, split.tp)
        yield Stage(weights, cache)
        start = end


def _weights_on_rank(layer: Layer, tp: int) -> int:
    keys = _shared_out(layer.kv_projection_bytes, min(tp, max(1, layer.kv_heads)))
    rest = layer.weight_bytes - layer.replicated_bytes - layer.kv_projection_bytes
    return layer.replicated_bytes + keys + _shared_out(rest, tp)


def _shared_out(size: int, ranks: int) -> int:
    return -(-size // ranks)


def _cache_on_rank(layer: Layer, load: Load, tp: int, halves: Halves) -> int:
    heads = layer.kv_heads if layer.latent else _shared_out(layer.kv_heads, tp)
    per_token = halves.keys.row_bytes(heads * layer.key_length) + layer.plain_key_bytes
    per_token += halves.values.row_bytes(heads * layer.value_length)
    state = _shared_out(layer.conv_elements + layer.state_elements, tp) * _STATE_BYTES
    return per_token * _tokens(layer.window, load) + state * load.slots


def _tokens(window: int | None, load: Load) -> int:
    """Return how many tokens a layer keeps of all sequences together, as the engine rounds."""
    step, computed = GRANULARITY[load.engine]
    whole = _round_up(load.context, step) * load.parallel
    if window is None:
        return whole
    if load.engine == "sglang":
        return min(whole, max(int(SWA_SHARE * whole), window + computed))
    if load.engine == "vllm":
        kept = load.parallel * (_round_up(window, step) + step) + computed
        return min(whole, kept)
    if load.slots != load.parallel:  # the sequences share one cache
        return min(whole, _round_up(window * load.slots + computed, step))
    return min(whole, _round_up(window + computed, step) * load.parallel)


def _round_up(tokens: int, step: int) -> int:
    return -(-tokens // step) * step


def _weights_part(metadata: Metadata, size: int, split: Split) -> MemoryPart:
    how = "as stored" if metadata.weights_exact else "worked out from the configuration"
    cut = "" if split.tp * split.pp == 1 else f", on the fullest of {split.tp * split.pp} devices"
    said = f"{metadata.weight_dtype}, {how}{cut}"
    return MemoryPart(name="weights", bytes=size, assumption=said)


def _cache_part(size: int, load: Load, halves: Halves) -> MemoryPart:
    keys, values = halves
    kind = keys.name if keys == values else f"keys {keys.name}, values {values.name}"
    said = f"{load.context} tokens for each of {load.parallel}, {kind}"
    return MemoryPart(name="cache", bytes=size, assumption=said)


def _reserve(
    engine: str, parts: Sequence[MemoryPart], fraction: float | None
) -> tuple[MemoryPart, ...]:
    """Return what must stay free beside weights and cache by SGLang's own rule.

    With a fraction of the device given, that rule is about the device and not about the replica.
    """
    whole = sum(part.bytes for part in parts)
    static = sum(part.bytes for part in parts if part.name in ("weights", "cache"))
    needed = int(static / STATIC_SHARE)
    if engine != "sglang" or fraction is not None or needed <= whole:
        return ()
    said = f"weights and cache may take {STATIC_SHARE:g} of it (--mem-fraction-static)"
    return (MemoryPart(name="reserve", bytes=needed - whole, assumption=said),)


def _assumptions(metadata: Metadata, context: int | None, parallel: int | None) -> tuple[str, ...]:
    said = list(metadata.assumptions)
    if not metadata.known:
        said.append(
            f"the architecture {metadata.architecture} is not known to this version: every layer "
            "is taken to keep everything, which is the most that it can be"
        )
    if context is None:
        said.append(f"no context was given: the model's own {metadata.context_length} tokens")
    if parallel is None:
        said.append("how many sequences at once was not given: one of full length")
    return tuple(said)
