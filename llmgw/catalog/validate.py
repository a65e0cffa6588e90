"""From the tree of a catalog's text to its entries, or to everything that is wrong with it.

Pure: no file is read, and whether a source exists is asked of a function that is passed in.
`llmgw.catalog.load` calls `check_text`; the controller, which gets entries and no text, does not
need this module.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable
from typing import Any

import msgspec

from llmgw.catalog import fields
from llmgw.catalog.entries import Catalog, Entry
from llmgw.catalog.report import Report
from llmgw.catalog.rules import Draft, check
from llmgw.catalog.tree import Broken, Items, Node, Pairs, Scalar, read_tree
from llmgw.engines.registry import ENGINES

Reader = Callable[[Node, str, Report], Any]

_FIELDS: dict[str, tuple[str, Reader]] = {
    "name": ("name", fields.read_name),
    "engine": ("engine", fields.read_text),
    "class": ("class", fields.read_classes),
    "memory": ("memory_bytes", fields.read_memory),
    "source": ("source", fields.read_text),
    "revision": ("revision", fields.read_text),
    "command": ("command", fields.read_texts),
    "args": ("args", fields.read_texts),
    "env": ("env", fields.read_environment),
    "context": ("context", fields.read_count),
    "parallel": ("parallel", fields.read_count),
    "replicas": ("replicas", fields.read_count_or_none),
    "gpus": ("gpus", fields.read_count),
    "tp": ("tp", fields.read_count),
    "pp": ("pp", fields.read_count),
    "nodes": ("nodes", fields.read_count),
    "health": ("health_path", fields.read_path),
    "start_seconds": ("start_seconds", fields.read_seconds),
    "stop_seconds": ("stop_seconds", fields.read_seconds),
}
"""YAML field to the entry's attribute (as msgspec names it) and the reader of its value."""

_REQUIRED = {
    "name": "missing; give the model a name such as llama-8b",
    "engine": f"missing; choose one of {', '.join(ENGINES)}",
    "class": "missing; write the device class that it runs on, such as a100-80g, h100-* or cpu",
    "memory": "missing; write what one replica needs on each device, such as 16GiB: the size of "
    "the model's files plus the cache for its context",
}
_OTHER_WORDS = {
    "model": "source",
    "path": "source",
    "classes": "class",
    "device": "class",
    "gpu": "gpus",
    "vram": "memory",
    "memory_bytes": "memory",
    "health_path": "health",
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "environment": "env",
    "count": "replicas",
}
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(?::[\w.-]{1,64})?")
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,127}")


class Checked(msgspec.Struct, frozen=True):
    """A catalog as far as it is valid, with `FILE:LINE: field: message` for what is not."""

    catalog: Catalog
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def check_text(
    text: str,
    file_name: str,
    base_dir: str,
    home: str | None = None,
    exists: Callable[[str], bool] = lambda _path: True,
) -> Checked:
    """Read `text` and report everything at once; never raises, whatever `text` is.

    `base_dir` (absolute) is what relative sources start from, `home` what `~` stands for. A
    source that `exists` denies is a warning only: the catalog may be meant for other machines.
    """
    report = Report()
    root = read_tree(text, report)
    entries: list[Entry] = []
    seen: dict[str, int] = {}
    for node in _model_nodes(root, report, silent=bool(report.problems(file_name))):
        draft = _read_entry(node, report)
        if draft is None:
            continue
        _check_name(draft, seen, report)
        _resolve_source(draft, base_dir, home, exists, report)
        check(draft, report)
        entry = _entry(draft)
        if entry is not None:
            entries.append(entry)
    return Checked(
        catalog=Catalog(models=tuple(entries)),
        problems=report.problems(file_name),
        warnings=report.warnings(file_name),
    )


def _model_nodes(root: Node | None, report: Report, *, silent: bool) -> list[Node]:
    """Return the entries' nodes. `silent`: the text broke off, so what is missing says nothing."""
    if not isinstance(root, Pairs):
        if not silent:
            empty = root is None or (isinstance(root, Scalar) and not root.text)
            what = "is empty" if empty else "must be a mapping"
            report.problem(1, "models", f"{what}; write `models:` and a list of entries under it")
        return []
    for key, (line, _) in root.pairs.items():
        if key != "models":
            report.problem(line, _shown(key), "is not known here; a catalog holds only `models:`")
    if "models" not in root.pairs:
        report.problem(root.line, "models", "missing; write `models:` and a list of entries")
        return []
    line, node = root.pairs["models"]
    if isinstance(node, Items):
        return node.nodes  # `models: []` says that nothing shall be served
    if not isinstance(node, Broken):
        said = "must be a list of entries (`- name: …`), or `[]` to serve nothing"
        report.problem(line, "models", said)
    return []


def _read_entry(node: Node, report: Report) -> Draft | None:
    if not isinstance(node, Pairs):
        if not isinstance(node, Broken):
            report.problem(node.line, "models", "each entry is a mapping that begins `- name: …`")
        return None
    draft = Draft(node.line)
    for key, (line, value) in node.pairs.items():
        if key not in _FIELDS:
            report.problem(line, _shown(key), _unknown_field(key))
            continue
        draft.lines[key] = line
        read = _FIELDS[key][1](value, key, report)
        if read is not None:
            draft.values[key] = read
    for key, message in _REQUIRED.items():
        if key not in draft.lines:
            report.problem(node.line, key, message)
    engine = draft.values.get("engine")
    if engine is not None and draft.engine is None:
        near = difflib.get_close_matches(engine.lower(), ENGINES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else "there are"
        draft.problem("engine", f"{engine!r:.60} is unknown; {hint} ({', '.join(ENGINES)})", report)
    return draft


def _unknown_field(key: str) -> str:
    near = difflib.get_close_matches(key.lower(), _FIELDS, n=1, cutoff=0.6)
    hint = _OTHER_WORDS.get(key.lower()) or (near[0] if near else None)
    if hint:
        return f"is no field of an entry; did you mean `{hint}`?"
    return f"is no field of an entry; there are {', '.join(_FIELDS)}"


def _shown(key: str) -> str:
    return key if key.isprintable() and 0 < len(key) <= 64 else ascii(key)[:66]


def _check_name(draft: Draft, seen: dict[str, int], report: Report) -> None:
    name = draft.values.get("name")
    if name is None:
        return
    if name in seen:
        draft.problem("name", f"{name} is taken by the entry in line {seen[name]}", report)
    seen.setdefault(name, draft.lines["name"])


def _resolve_source(
    draft: Draft,
    base_dir: str,
    home: str | None,
    exists: Callable[[str], bool],
    report: Report,
) -> None:
    """Make a path absolute, leave a repository's id as it is, and check `revision` against it."""
    source: str | None = draft.values.get("source")
    if source is None:
        return
    is_path = source.startswith(("/", "./", "../", "~")) or source.lower().endswith(".gguf")
    if not is_path:
        _check_repository(draft, source, report)
        return
    if source.startswith("~") and (home is None or not source.startswith("~/")):
        draft.problem("source", "only ~/ is understood, the home of whoever applies it", report)
        return
    path = posixpath.join(home or base_dir, source[2:]) if source.startswith("~/") else source
    path = posixpath.normpath(posixpath.join(base_dir, path))
    draft.values["source"] = path
    if "revision" in draft.lines:
        draft.problem("revision", "belongs to a repository; the source is a path", report)
    if not exists(path):
        said = f"{path} is not on this machine; it must exist on the nodes that run the model"
        report.warn(draft.lines["source"], "source", said)


def _check_repository(draft: Draft, source: str, report: Report) -> None:
    if "://" in source:
        said = "must be a path or a repository such as org/model: download it to the nodes first"
        draft.problem("source", said, report)
    elif not _REPOSITORY.fullmatch(source):
        said = (
            f"{source!r:.80} is neither a repository (org/model) nor a path: begin it with ./ or /"
        )
        draft.problem("source", said, report)
    revision = draft.values.get("revision")
    if revision is not None and draft.values.get("engine") == "llama.cpp":
        draft.problem("revision", "llama-server cannot choose one; download the file", report)
    elif revision is not None and not _REVISION.fullmatch(revision):
        draft.problem("revision", "must be a branch, a tag or a commit", report)


def _entry(draft: Draft) -> Entry | None:
    """Return the entry, or `None` where a field was wrong (the report has it)."""
    if not draft.values.keys() >= draft.lines.keys() | _REQUIRED.keys():
        return None
    named = {_FIELDS[key][0]: value for key, value in draft.values.items()}
    return msgspec.convert(named, Entry)
