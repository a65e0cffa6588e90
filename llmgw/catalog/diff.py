"""What applying a catalog over another would change, field by field.

Pure. `ctl apply`, its `--dry-run` and plans print it. Secrets that an entry holds in spite of the
rules are masked; references to them are shown.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llmgw.catalog.draft import written
from llmgw.catalog.entries import Catalog, Entry
from llmgw.engines.references import REFERENCE
from llmgw.masking import mask_value

_DERIVED = ("name", "memory_estimated")


class FieldChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One field of a catalog, by the name that it has there; an absent side has no value."""

    field: str
    before: Any = None
    after: Any = None


class EntryChange(msgspec.Struct, frozen=True):
    """One entry that stays, and the fields of it that change."""

    name: str
    fields: tuple[FieldChange, ...]


class CatalogDiff(msgspec.Struct, frozen=True):
    """Names of models, in the order of the catalog that has them (`removed`: of the old one)."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[EntryChange, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether both catalogs want the same."""
        return not (self.added or self.removed or self.changed)


def diff(old: Catalog, new: Catalog) -> CatalogDiff:
    """Return what `new` adds, removes and changes against `old`."""
    before = {entry.name: entry for entry in old.models}
    after = {entry.name: entry for entry in new.models}
    both = [(before[name], entry) for name, entry in after.items() if name in before]
    return CatalogDiff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(EntryChange(new.name, _fields(old, new)) for old, new in both if old != new),
    )


def _fields(old: Entry, new: Entry) -> tuple[FieldChange, ...]:
    before, after = _shown(old), _shown(new)
    return tuple(
        FieldChange(name, before.get(name), after.get(name))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    )


def _shown(entry: Entry) -> dict[str, Any]:
    """Return an entry's fields, the inner ones of mappings by themselves: `env.HF_TOKEN`."""
    found: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(written(entry)).items():
        if name in _DERIVED:
            continue
        if isinstance(value, dict):
            found |= _inner(name, value)
        else:
            found[name] = mask_value(name, value)
    return found


def _inner(name: str, values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _inner(f"{name}.{key}", value)
        else:
            plain = name == "env" and isinstance(value, str) and REFERENCE.fullmatch(value)
            found[f"{name}.{key}"] = value if plain else mask_value(key, value)
    return found
