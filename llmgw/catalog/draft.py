"""An entry on its way from a text, or from the log, to being checked.

Pure. The readers fill a `Draft`; the rules ask it and report; what is wrong by itself is absent
from its values, so that rules about it are passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from llmgw.catalog.entries import Entry
from llmgw.catalog.report import Report
from llmgw.engines.base import Engine
from llmgw.engines.registry import ENGINES

_WRITTEN = {"classes": "class", "memory_bytes": "memory", "health_path": "health"}
_HALVES = {"cache_key_dtype": "key", "cache_value_dtype": "value"}
REQUIRED = ("name", "engine", "class")


class ModelFacts(msgspec.Struct, frozen=True):
    """What a model's own files say about an entry.

    `memory_bytes` is what one replica needs on each device; where it is absent, `unknown` says
    why, and nobody may take it as zero. `heads` is the number of attention heads; `remark` what a
    person should know of the estimate.
    """

    memory_bytes: int | None = None
    unknown: str = "the model's files say too little"
    heads: int | None = None
    remark: str | None = None


Look = Callable[[Entry], ModelFacts]
"""Reads the model of an entry whose `memory_bytes` may still be 0."""


@dataclass(frozen=True)
class Draft:
    """An entry as far as it was read: good values by field, and the line of every field."""

    line: int
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def engine(self) -> Engine | None:
        """The engine, if the entry names one that exists."""
        return ENGINES.get(self.values.get("engine", ""))

    def problem(self, name: str, message: str, report: Report) -> None:
        """Report `message` about field `name`, at its line or else at the entry's."""
        report.problem(self.lines.get(name, self.line), name, message)

    def warn(self, name: str, message: str, report: Report) -> None:
        """Say something odd about field `name`, in the same way."""
        report.warn(self.lines.get(name, self.line), name, message)

    def entry(self) -> Entry | None:
        """Return the entry; `None` where a field is wrong. Memory that nobody gave is 0."""
        if not self.values.keys() >= {*self.lines, *REQUIRED} or self.engine is None:
            return None
        return Entry(**_attributes(self.values))


def written(entry: Entry) -> dict[str, Any]:
    """Return an entry's values under the names of the fields in a catalog, absent ones left out."""
    values = {
        _WRITTEN.get(name, name): getattr(entry, name)
        for name in entry.__struct_fields__
        if name not in _HALVES and getattr(entry, name) is not None
    }
    halves = {half: getattr(entry, name) for name, half in _HALVES.items()}
    cache = {half: dtype for half, dtype in halves.items() if dtype is not None}
    return values | ({"kv_cache_dtype": cache} if cache else {})


def _attributes(values: dict[str, Any]) -> dict[str, Any]:
    """The opposite of `written`."""
    named = {name: name for name in values} | {new: old for old, new in _WRITTEN.items()}
    attributes = {named[field]: value for field, value in values.items()}
    cache = attributes.pop("kv_cache_dtype", {})
    attributes |= {name: cache.get(half) for name, half in _HALVES.items()}
    return {"memory_bytes": 0} | attributes
