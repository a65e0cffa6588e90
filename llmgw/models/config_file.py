"""The values of a Hugging Face `config.json`, read with their names of many families.

Pure. `Config` gives numbers by any of several names, refuses what cannot be a size, and finds the
part that describes the language model where a vision model nests it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmgw.errors import ModelUnreadable

_LARGEST = 1 << 31
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "talker_config")
_DEEPEST = 4

LAYER_COUNTS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"),
    "decoder_layers",
)
HIDDEN = ("hidden_size", "n_embd", "d_model", "model_dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")


class Config:
    """One `config.json`, or the text part of one. `outer` is the whole of it."""

    def __init__(self, source: str, values: Mapping[str, Any], outer: Mapping[str, Any]) -> None:
        self.source = source
        self.values = values
        self.outer = outer

    @property
    def kind(self) -> str:
        """The family: `model_type`, or the first of `architectures`."""
        for values in (self.values, self.outer):
            kind = values.get("model_type")
            if isinstance(kind, str) and kind:
                return kind
        names = self.outer.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "unknown"

    def number(self, *names: str, default: int | None = None) -> int:
        """Return the first of `names` that has a whole number.

        Raises `ModelUnreadable` for what is no size, or where none is there and no default.
        """
        for name in names:
            value = self._find(name)
            if value is not None:
                return self.checked(name, value)
        if default is None:
            raise ModelUnreadable(f"{self.source}: has no {' or '.join(names[:3])}")
        return default

    def optional(self, *names: str) -> int | None:
        """Return the first of `names` that has a whole number, or `None`."""
        found = self.number(*names, default=-1)
        return None if found < 0 else found

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a truth."""
        value = self.values.get(name, self.outer.get(name))
        return default if value is None else bool(value)

    def items(self, name: str) -> list[Any] | None:
        """Return a list, or `None` where there is none."""
        value = self.values.get(name)
        return value if isinstance(value, list) and value else None

    def part(self, name: str) -> Mapping[str, Any]:
        """Return a nested object, or an empty one."""
        value = self.values.get(name, self.outer.get(name))
        return value if isinstance(value, dict) else {}

    def within(self, name: str) -> Config:
        """Return a nested object as a configuration of its own."""
        return Config(f"{self.source} ({name})", self.part(name), {})

    def checked(self, name: str, value: object) -> int:
        """Return `value` as a size. Raises `ModelUnreadable` where it is none."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST:
            return value
        raise ModelUnreadable(f"{self.source}: {name} is {value!r:.40}, which is no size")

    def _find(self, name: str) -> object:
        value = self.values.get(name)
        if isinstance(value, list):  # OpenELM and others: one for each layer
            return max((self.checked(name, item) for item in value), default=None)
        return value


def text_part(source: str, values: Mapping[str, Any]) -> Config:
    """Return the part of a `config.json` that describes the language model."""
    part: Mapping[str, Any] = values
    for _ in range(_DEEPEST):
        if any(name in part for name in LAYER_COUNTS):
            break
        nested = next((part[n] for n in _NESTED if isinstance(part.get(n), dict)), None)
        if nested is None:
            break
        part = nested
    return Config(source, part, values)
