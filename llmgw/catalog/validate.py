"""From the tree of a catalog's text to its entries, or to everything that is wrong with it.

Pure: no file is read, and whether a source exists is asked of a function that is passed in.
`llmgw.catalog.load` calls `check_text`; the controller, which gets entries and no text, does not
need this module.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

import msgspec

from llmgw.catalog import device_rules
from llmgw.catalog.draft import REQUIRED, Draft, Look, ModelFacts
from llmgw.catalog.entries import Catalog, Entry
from llmgw.catalog.report import Report, nearest, shown
from llmgw.catalog.rules import check
from llmgw.catalog.table import FIELDS
from llmgw.catalog.tree import Broken, Items, Node, Pairs, Scalar, read_tree
from llmgw.engines.registry import ENGINES

_MISSING = {
    "name": "missing; give the model a name such as llama-8b",
    "engine": f"missing; choose one of {', '.join(ENGINES)}",
    "class": "missing; write the device class that it runs on, such as a100-80g, h100-* or cpu",
}
_NO_MEMORY = "write what one replica needs on each device, such as 16GiB"
_NO_MEMORY_OF_FILES = f"{_NO_MEMORY}: the size of the model's files plus the cache for its context"

_OTHER_WORDS = {
    "model": "source",
    "path": "source",
    "classes": "class",
    "device": "class",
    "gpu": "gpus",
    "vram": "memory",
    "memory_bytes": "memory",
    "vram_fraction": "gpu_memory_fraction",
    "gpu_memory_utilization": "gpu_memory_fraction",
    "mem_fraction_static": "gpu_memory_fraction",
    "cache_type": "kv_cache_dtype",
    "cache_dtype": "kv_cache_dtype",
    "shared": "share",
    "placement": "policy",
    "node_selector": "labels",
    "node_labels": "labels",
    "max_model_len": "context",
    "ctx_size": "context",
    "max_num_seqs": "parallel",
    "timeout": "start_seconds",
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
    look: Look | None = None,
) -> Checked:
    """Read `text` and report everything at once; never raises, whatever `text` is.

    `base_dir` (absolute) is what relative sources start from, `home` what `~` stands for. A
    source that `exists` denies is a warning only: the catalog may be meant for other machines.
    `look` reads models, to estimate memory that is not given; without it memory must be given.
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
        device_rules.split(draft, report)
        facts = _facts(draft, look)
        if facts is not None or not _has_model(draft, look):
            _fill_memory(draft, facts, report)
        check(draft, facts or ModelFacts(), report)
        entry = draft.entry()
        if entry is not None and entry.memory_bytes:
            entries.append(entry)
        if report.full:
            break
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
            report.problem(line, shown(key), "is not known here; a catalog holds only `models:`")
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
        if key not in FIELDS:
            report.problem(line, shown(key), _unknown_field(key))
            if report.full:
                return None
            continue
        draft.lines[key] = line
        read = FIELDS[key].read(value, key, report)
        if read is not None:
            draft.values[key] = read
    for key in REQUIRED:
        if key not in draft.lines:
            report.problem(node.line, key, _MISSING[key])
    engine = draft.values.get("engine")
    if engine is not None and draft.engine is None:
        near = nearest(engine, ENGINES)
        hint = f"did you mean {near}?" if near else "there are"
        draft.problem("engine", f"{engine!r:.60} is unknown; {hint} ({', '.join(ENGINES)})", report)
    return draft


def _unknown_field(key: str) -> str:
    if key == "<<":
        return "a merge is not read in a catalog; write its fields out"
    near = _OTHER_WORDS.get(key.lower().replace("-", "_")) or nearest(key, FIELDS)
    if near:
        return f"is no field of an entry; did you mean `{near}`?"
    return f"is no field of an entry; there are {', '.join(FIELDS)}"


def _has_model(draft: Draft, look: Look | None) -> bool:
    """Return whether there is a model to look into, once all other mistakes are corrected."""
    engine = draft.engine
    return (
        look is not None and "source" in draft.lines and (engine is None or engine.programs != ())
    )


def _facts(draft: Draft, look: Look | None) -> ModelFacts | None:
    """Return what the model's files say, where that is needed and the entry is whole."""
    entry, engine = draft.entry(), draft.engine
    if look is None or entry is None or engine is None or not _has_model(draft, look):
        return None
    needs_heads = engine.tp_divides_heads and entry.tp > 1
    return look(entry) if needs_heads or "memory" not in draft.lines else None


def _fill_memory(draft: Draft, facts: ModelFacts | None, report: Report) -> None:
    """Take the estimate where no memory was given. One that is unknown is never taken as zero."""
    if "memory" in draft.lines:
        return
    if facts is None:
        draft.problem("memory", f"missing; {_NO_MEMORY_OF_FILES}", report)
    elif not facts.memory_bytes or facts.memory_bytes < 0:
        said = f"missing, and cannot be estimated: {facts.unknown}; {_NO_MEMORY}"
        draft.problem("memory", said, report)
    else:
        draft.values.update(memory=facts.memory_bytes, memory_estimated=True)
        if facts.remark is not None:
            said = f"estimated as {facts.memory_bytes / 2**30:.1f} GiB: {facts.remark}"
            draft.warn("memory", said, report)


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
