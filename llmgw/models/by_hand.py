"""A model of which only sizes are known: what a person types in place of its files.

Pure. The sizes are shared out evenly over layers, so that splits can be tried.
"""

from __future__ import annotations

from llmgw.models.types import Layer, Metadata

LAYERS = 32
_ELEMENT_BYTES = 2


def by_hand(
    weights_bytes: int, cache_bytes_per_token: int, *, context_length: int | None = None
) -> Metadata:
    """Return a model of these sizes. The cache is in 16 bits, as it is where nothing is said."""
    elements = -(-cache_bytes_per_token // (_ELEMENT_BYTES * LAYERS))
    each, more = divmod(weights_bytes, LAYERS)
    layers = tuple(
        Layer(weight_bytes=each + (number < more), kv_heads=elements, key_length=1)
        for number in range(LAYERS)
    )
    return Metadata(
        source="by hand",
        format="by hand",
        architecture="by hand",
        context_length=context_length,
        weight_dtype="as given",
        layers=layers,
    )
