"""What can be wrong with a whole catalog, asked again by the controller before it accepts one."""

from __future__ import annotations

from llmgw.catalog.entries import Catalog


def problems(catalog: Catalog) -> tuple[str, ...]:
    """Return one message for everything that is wrong; empty when the catalog is valid."""
    names = [entry.name for entry in catalog.models]
    return tuple(
        f"{name}: named twice" for name in sorted({n for n in names if names.count(n) > 1})
    )
