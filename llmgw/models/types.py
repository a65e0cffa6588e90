"""What is known of a model without its weights: layers, what each keeps per token, and sizes.

Pure data. The readers of this package fill it from GGUF, safetensors and `config.json`; `estimate`
turns it into bytes per device. Counts are of the whole model, before any split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

MOST_LAYERS = 2_000


class TensorInfo(NamedTuple):
    """A tensor as a header describes it: its name, its shape and what it takes on disk."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


Value = int | float | bool | str | list["Value"] | None
"""The value of a GGUF key. A long array is `None`: nothing here needs its items."""


class GgufHeader(NamedTuple):
    """What a GGUF file says before its weights. `lengths` counts the arrays not kept."""

    keys: Mapping[str, Value]
    lengths: Mapping[str, int]
    tensors: tuple[TensorInfo, ...]


class Layer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One layer: the bytes of its weights, and what it keeps of every sequence that it serves.

    Attention keeps `kv_heads` keys of `key_length` and values of `value_length` elements for each
    token, or only for the newest `window` tokens. `latent` marks a compressed cache (MLA): one
    vector of `key_length` elements, with no values of its own, which every rank keeps whole.
    `plain_key_bytes` come on top per token in no chosen type (an index of sparse attention).
    `conv_elements` and `state_elements` are kept once per sequence, however long it gets: the
    short convolution and the recurrent state of Mamba and linear attention.

    Of the weights, `replicated_bytes` stand whole on every rank of a tensor-parallel group, and
    `kv_projection_bytes` are divided among no more ranks than there are KV heads.
    """

    weight_bytes: int = 0
    replicated_bytes: int = 0
    kv_projection_bytes: int = 0
    kv_heads: int = 0
    key_length: int = 0
    value_length: int = 0
    window: int | None = None
    latent: bool = False
    plain_key_bytes: int = 0
    conv_elements: int = 0
    state_elements: int = 0


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A model as its files describe it.

    `architecture` is the files' own word; where it is not `known`, every layer is taken as full
    attention, which is the most that it can keep. `layers` are in the model's order.
    `embedding_bytes` and `head_bytes` are the token embeddings and the output matrix (zero where
    tied), `other_bytes` what is in no layer (vision towers, norms), `side_bytes` files beside the
    model (a vision projector). `weights_exact` says that they are sums over the files' tensors
    rather than worked out from the configuration. `unknown` says why no estimate can be made:
    what is missing is never taken as zero. `assumptions` are in words, for people.
    """

    source: str
    format: str
    architecture: str
    known: bool = True
    weights_exact: bool = True
    attention_heads: int | None = None
    kv_heads: int | None = None
    context_length: int | None = None
    hidden_length: int = 0
    feed_forward_length: int = 0
    vocabulary: int = 0
    weight_dtype: str = "unknown"
    layers: tuple[Layer, ...] = ()
    embedding_bytes: int = 0
    head_bytes: int = 0
    other_bytes: int = 0
    side_bytes: int = 0
    unknown: str | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """All weights, side files included."""
        layers = sum(layer.weight_bytes for layer in self.layers)
        ends = self.embedding_bytes + self.head_bytes
        return layers + ends + self.other_bytes + self.side_bytes


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of an estimate: bytes on the fullest device, and what was assumed."""

    name: str
    bytes: int
    assumption: str


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one replica needs on each of its devices: the fullest device counts.

    `context` and `parallel` are what it was made for: tokens of one sequence, and how many
    sequences at once. `cautious` says that the architecture is unknown and this is a bound.
    """

    parts: tuple[MemoryPart, ...]
    context: int
    parallel: int
    tp: int = 1
    pp: int = 1
    cautious: bool = False
    assumptions: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """The sum of the parts: what placement must find free on each device."""
        return sum(part.bytes for part in self.parts)

    def part(self, name: str) -> int:
        """Return the bytes of the part called `name`; 0 where the estimate has none."""
        return sum(part.bytes for part in self.parts if part.name == name)


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """No estimate can be made, and why. Nobody may take it as zero."""

    reason: str
