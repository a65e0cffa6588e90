"""Which tensor belongs where: to a layer, to the embeddings, to the output, or to neither.

Pure. Works on names of GGUF (`blk.3.attn_q.weight`) and of Hugging Face's models
(`model.layers.3.self_attn.q_proj.weight`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from llmgw.models.types import Layer, TensorInfo

_LAYER = re.compile(r"^(?P<before>.*?)(?:\bblk|\blayers|\bh|\bblocks?)\.(?P<number>\d{1,5})\.")
_OUTSIDE = re.compile(
    r"vision|visual|image|audio|speech|whisper|encoder|projector|resampler|^v\.|^a\.|^mm\."
)
_EMBEDDING = re.compile(
    r"(?:embed_tokens|tok_embeddings|token_embd|per_layer_token_embd|embed_tokens_per_layer|\bwte"
    r"|word_embeddings|backbone\.embeddings?|^embeddings?|embed_in)\.(?:weight|qweight|scales)"
)
_HEAD = re.compile(r"(?:lm_head|embed_out|^output|^model\.output)\.(?!norm)")
_REPLICATED = re.compile(
    r"q_a_proj|kv_a_proj|fused_qkv_a|attn_q_a|attn_kv_a|ffn_gate_inp|mlp\.gate\.|router|norm"
)
_KV_PROJECTION = re.compile(r"\b(?:k_proj|v_proj|attn_k|attn_v)\.(?:weight|qweight|scales|bias)")


@dataclass
class LayerWeights:
    """Bytes of one layer's weights, as `Layer` has them."""

    weight_bytes: int = 0
    replicated_bytes: int = 0
    kv_projection_bytes: int = 0


@dataclass
class Weights:
    """Bytes of a model's weights by where they are."""

    layers: dict[int, LayerWeights] = field(default_factory=dict)
    embedding_bytes: int = 0
    head_bytes: int = 0
    other_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All of them."""
        layers = sum(layer.weight_bytes for layer in self.layers.values())
        return layers + self.embedding_bytes + self.head_bytes + self.other_bytes


def sort_weights(tensors: Iterable[TensorInfo]) -> Weights:
    """Return the bytes of `tensors` by where they belong."""
    weights = Weights()
    for tensor in tensors:
        layer = _LAYER.match(tensor.name)
        if layer is not None and not _OUTSIDE.search(layer["before"]):
            _add(weights.layers.setdefault(int(layer["number"]), LayerWeights()), tensor)
        elif _OUTSIDE.search(tensor.name):
            weights.other_bytes += tensor.bytes
        elif _EMBEDDING.search(tensor.name):
            weights.embedding_bytes += tensor.bytes
        elif _HEAD.search(tensor.name):
            weights.head_bytes += tensor.bytes
        else:
            weights.other_bytes += tensor.bytes
    return weights


def _add(layer: LayerWeights, tensor: TensorInfo) -> None:
    layer.weight_bytes += tensor.bytes
    if len(tensor.shape) < 2 or _REPLICATED.search(tensor.name):
        layer.replicated_bytes += tensor.bytes
    elif _KV_PROJECTION.search(tensor.name):
        layer.kv_projection_bytes += tensor.bytes


def weighted(cache: Layer, weights: Weights, number: int) -> Layer:
    """Return what layer `number` keeps together with the weights that it has."""
    found = weights.layers.get(number)
    if found is None:
        return cache
    return replace(
        cache,
        weight_bytes=found.weight_bytes,
        replicated_bytes=found.replicated_bytes,
        kv_projection_bytes=found.kv_projection_bytes,
    )
