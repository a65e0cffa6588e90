"""From `config.json`, and the tensors of the checkpoint where they are known, to metadata.

Pure. With safetensors headers the weights are exact; with no more than their sum they are shared
out as the configuration suggests; with neither they are worked out from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmgw.errors import ModelUnreadable
from llmgw.models import architectures
from llmgw.models.config_file import HIDDEN, Config, text_part
from llmgw.models.parameters import count_weights, weight_costs
from llmgw.models.tensors import LayerWeights, Weights, sort_weights, weighted
from llmgw.models.types import Layer, Metadata, TensorInfo

_CONTEXT = (
    *("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len"),
    "model_max_length",
)


def config_metadata(
    source: str,
    values: Mapping[str, Any],
    tensors: Sequence[TensorInfo] = (),
    total_bytes: int | None = None,
) -> Metadata:
    """Return the metadata of a Hugging Face model.

    `total_bytes` is the sum of the weights where only that is known. Raises `ModelUnreadable`.
    """
    config = text_part(source, values)
    known = config.kind in architectures.KNOWN
    heads, kv_heads = architectures.head_counts(config)
    caches = architectures.layer_caches(config)
    weights, exact, assumptions = _weights(config, tensors, total_bytes, len(caches))
    layers = tuple(weighted(cache, weights, n) for n, cache in enumerate(caches))
    extra = tuple(weighted(Layer(), weights, n) for n in sorted(weights.layers) if n >= len(caches))
    if extra:
        assumptions += (f"{len(extra)} layers beyond the model's own (for drafting) are counted",)
    return Metadata(
        source=source,
        format="safetensors" if tensors else "config",
        architecture=config.kind,
        known=known,
        weights_exact=exact,
        attention_heads=heads or None,
        kv_heads=kv_heads or None,
        context_length=config.optional(*_CONTEXT),
        hidden_length=config.number(*HIDDEN),
        feed_forward_length=_feed_forward(config),
        vocabulary=config.number("vocab_size", "padded_vocab_size", default=0),
        weight_dtype=weight_costs(config).name,
        layers=layers + extra,
        embedding_bytes=weights.embedding_bytes,
        head_bytes=weights.head_bytes,
        other_bytes=weights.other_bytes,
        unknown=_not_estimated(config, known, layers),
        assumptions=assumptions,
    )


def _not_estimated(config: Config, known: bool, layers: Sequence[Layer]) -> str | None:
    if config.flag("is_encoder_decoder") or config.kind in {"t5", "whisper", "bart", "mbart"}:
        return "encoder-decoder models keep a second cache, which is not estimated; give `memory`"
    if not known and not any(layer.kv_heads for layer in layers):
        return (
            f"the architecture {config.kind} is not known to this version, and config.json names "
            "no heads to bound its cache by; give `memory`"
        )
    return None


def _weights(
    config: Config, tensors: Sequence[TensorInfo], total_bytes: int | None, count: int
) -> tuple[Weights, bool, tuple[str, ...]]:
    """Return the weights by where they are, whether their sum is exact, and what was assumed."""
    if tensors:
        return sort_weights(tensors), True, ()
    if config.kind in architectures.KNOWN:
        try:
            counted = count_weights(config)
        except ModelUnreadable:
            if total_bytes is None:
                raise
            counted = None
        if counted is not None and total_bytes is None:
            return counted, False, ("weights worked out from config.json: no weights are here",)
        if counted is not None and total_bytes is not None:
            shared = _scaled(counted, total_bytes)
            return shared, True, ("only the sum of the weights is known: shared out by layers",)
    if total_bytes is None:
        raise ModelUnreadable(
            f"{config.source}: the architecture {config.kind} is not known to this version and "
            "none of the weights are here: nothing says how large it is"
        )
    each = LayerWeights(weight_bytes=-(-total_bytes // count))
    shared = Weights(layers=dict.fromkeys(range(count), each))
    return shared, True, ("only the sum of the weights is known: shared out evenly",)


def _scaled(counted: Weights, total_bytes: int) -> Weights:
    """Return weights in the same proportions whose sum is `total_bytes`; the rest is `other`."""
    whole = max(1, counted.total_bytes)

    def share(part: int) -> int:
        return part * total_bytes // whole

    scaled = Weights(
        layers={
            number: LayerWeights(
                share(layer.weight_bytes),
                share(layer.replicated_bytes),
                share(layer.kv_projection_bytes),
            )
            for number, layer in counted.layers.items()
        },
        embedding_bytes=share(counted.embedding_bytes),
        head_bytes=share(counted.head_bytes),
    )
    scaled.other_bytes = total_bytes - scaled.total_bytes
    return scaled


def _feed_forward(config: Config) -> int:
    dense = config.number("intermediate_size", "ffn_dim", "n_inner", default=0)
    width = config.number("moe_intermediate_size", default=0)
    used = config.number("num_experts_per_tok", "top_k_experts", default=1)
    return max(dense, width * used)
