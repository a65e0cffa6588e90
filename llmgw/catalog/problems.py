"""What can be wrong with a whole catalog of entries, without the text that it came from.

Pure. The controller asks it before it accepts a catalog: what is in the log need not have come
through `llmgw ctl apply`. The rules are those of `rules`, which the reading of a file asks too.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from llmgw.catalog.entries import Catalog, Entry
from llmgw.catalog.report import Report
from llmgw.catalog.rules import NAME, Draft, check
from llmgw.engines.registry import ENGINES

_YAML_NAMES = {"classes": "class", "memory_bytes": "memory", "health_path": "health"}
_REQUIRED = {"name", "engine", "classes", "memory_bytes"}


def problems(catalog: Catalog) -> tuple[str, ...]:
    """Return `NAME: field: message` for everything that is wrong; empty when all is valid."""
    seen: set[str] = set()
    found: list[str] = []
    for entry in catalog.models:
        if entry.name in seen:
            found.append(f"{entry.name}: name: is taken by an earlier entry")
        seen.add(entry.name)
        found += _entry_problems(entry)
    return tuple(found)


def _entry_problems(entry: Entry) -> Iterator[str]:
    report = Report()
    draft = _draft(entry)
    if not NAME.fullmatch(entry.name):
        draft.problem("name", "use lower-case letters, digits and . _ -", report)
    if entry.engine not in ENGINES:
        draft.problem("engine", f"is none of {', '.join(ENGINES)}", report)
    if not entry.classes:
        draft.problem("class", "names no device class", report)
    if entry.memory_bytes <= 0:
        draft.problem("memory", "must be more than nothing", report)
    for name, least in (("replicas", 0), ("gpus", 1), ("tp", 1), ("pp", 1), ("nodes", 1)):
        if getattr(entry, name) < least:
            draft.problem(name, f"must be at least {least}", report)
    check(draft, report)
    for remark in report.remarks():
        yield f"{entry.name}: {remark.field}: {remark.message}"


def _draft(entry: Entry) -> Draft:
    """Return the entry as the rules see it: by field of a catalog, without what is at rest."""
    given = {
        field.name: getattr(entry, field.name)
        for field in msgspec.structs.fields(entry)
        if field.name in _REQUIRED or getattr(entry, field.name) != field.default
    }
    values = {_YAML_NAMES.get(name, name): value for name, value in given.items()}
    return Draft(1, values, dict.fromkeys(values, 1))
