"""What can be wrong with a whole catalog of entries, without the text that it came from.

Pure. The controller asks it before it accepts a catalog: what is in the log need not have come
through `llmgw ctl apply`. The rules are those of `rules`, which the reading of a file asks too.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmgw.catalog import device_rules
from llmgw.catalog.draft import Draft, ModelFacts, written
from llmgw.catalog.entries import Catalog, Entry
from llmgw.catalog.report import Report
from llmgw.catalog.rules import NAME, check
from llmgw.engines.registry import ENGINES

_ALWAYS = {"name", "engine", "class", "memory"}
_LEAST = {"replicas": 0, "gpus": 1, "tp": 1, "pp": 1, "nodes": 1}


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
    for name, least in _LEAST.items():
        if getattr(entry, name) < least:
            draft.problem(name, f"must be at least {least}", report)
    device_rules.split(draft, report)
    check(draft, ModelFacts(), report)
    for remark in report.remarks():
        yield f"{entry.name}: {remark.field}: {remark.message}"


def _draft(entry: Entry) -> Draft:
    """Return the entry as the rules see it: by field of a catalog, without what is at rest."""
    given = written(entry)
    values = {name: v for name, v in given.items() if name in _ALWAYS or v != _AT_REST.get(name)}
    return Draft(1, values, dict.fromkeys(values, 1))


_AT_REST = written(Entry(name="", engine="", classes=(), memory_bytes=0))
