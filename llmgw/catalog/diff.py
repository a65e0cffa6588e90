"""What applying a catalog over another would change, by name.

Pure. Plans and `ctl apply --dry-run` print it, and the operator's event records it.
"""

from __future__ import annotations

import msgspec

from llmgw.catalog.entries import Catalog


class CatalogDiff(msgspec.Struct, frozen=True):
    """Names of models, in the order of the catalog that has them (`removed`: of the old one)."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


def diff(old: Catalog, new: Catalog) -> CatalogDiff:
    """Return what `new` adds, removes and changes against `old`."""
    before = {entry.name: entry for entry in old.models}
    after = {entry.name: entry for entry in new.models}
    return CatalogDiff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(n for n, entry in after.items() if n in before and before[n] != entry),
    )
