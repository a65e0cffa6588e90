"""Readers of the fields that may be mappings: environment, labels, types of the KV cache.

Pure. As in `fields`, a reader returns `None` when the value is wrong, having said why.
"""

from __future__ import annotations

import re

from llmgw.catalog.entries import Labels
from llmgw.catalog.fields import read_text, report_shape
from llmgw.catalog.report import Report, did_you_mean, shown
from llmgw.catalog.tree import Node, Pairs
from llmgw.engines.references import from_env, from_file

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FILE = re.compile(r"/[^${}\x00-\x1f]{1,1023}")
_REFERENCES = ("from_env", "from_file")
_LABELS = ("require", "prefer", "avoid")
_HALVES = ("key", "value")


def read_environment(node: Node, field: str, report: Report) -> dict[str, str] | None:
    """Return a mapping of variable names to texts; what the node knows becomes a reference."""
    if not isinstance(node, Pairs):
        report_shape(node, field, "must be a mapping of names to texts", report)
        return None
    variables: dict[str, str] = {}
    for name, (line, value) in node.pairs.items():
        if not _VARIABLE.fullmatch(name):
            report.problem(line, field, f"{name!r:.70} is no name of an environment variable")
            continue
        read = _read_reference if isinstance(value, Pairs) else _read_value
        text = read(value, f"{field}.{name}", report)
        if text is not None:
            variables[name] = text
    return variables if len(variables) == len(node.pairs) else None


def _read_value(node: Node, field: str, report: Report) -> str | None:
    return read_text(node, field, report, lines=True)


def _read_reference(node: Node, field: str, report: Report) -> str | None:
    found = _read_words(node, field, _REFERENCES, report)
    if found is None:
        return None
    if len(found) != 1:
        said = "must be a text, {from_env: NAME} or {from_file: PATH}"
        report.problem(node.line, field, said)
        return None
    ((kind, text),) = found.items()
    if kind == "from_env" and _VARIABLE.fullmatch(text):
        return from_env(text)
    if kind == "from_file" and _FILE.fullmatch(text):
        return from_file(text)
    wanted = {
        "from_env": "must name a variable of the agent, such as HF_TOKEN",
        "from_file": "must be the absolute path of a file on the nodes, without $ { and }",
    }[kind]
    report.problem(node.line, f"{field}.{kind}", f"{wanted}, not {text!r:.80}")
    return None


def read_labels(node: Node, field: str, report: Report) -> Labels | None:
    """Return what labels of a node are required, preferred and avoided."""
    if not isinstance(node, Pairs):
        report_shape(node, field, f"must be a mapping with {', '.join(_LABELS)}", report)
        return None
    found: dict[str, dict[str, str]] = {}
    for kind, (line, value) in node.pairs.items():
        if kind not in _LABELS:
            said = f"is none of {', '.join(_LABELS)}{did_you_mean(kind, _LABELS)}"
            report.problem(line, f"{field}.{shown(kind)}", said)
            if report.full:
                return None
            continue
        words = _read_words(value, f"{field}.{kind}", None, report)
        if words is not None:
            found[kind] = words
    return Labels(**found) if len(found) == len(node.pairs) else None


def read_cache_dtype(node: Node, field: str, report: Report) -> dict[str, str] | None:
    """Return the types of the KV cache's keys and values: one word is both."""
    if not isinstance(node, Pairs):
        text = read_text(node, field, report)
        return None if text is None else dict.fromkeys(_HALVES, text)
    found = _read_words(node, field, _HALVES, report)
    if found == {}:
        report.problem(node.line, field, "must be one word, or {key: TYPE, value: TYPE}")
    return found or None


def _read_words(
    node: Node, field: str, known: tuple[str, ...] | None, report: Report
) -> dict[str, str] | None:
    """Return a mapping of words to words, of `known` ones only where these are given."""
    if not isinstance(node, Pairs):
        report_shape(node, field, "must be a mapping of names to texts", report)
        return None
    found: dict[str, str] = {}
    for name, (line, value) in node.pairs.items():
        if known is not None and name not in known:
            said = f"is none of {', '.join(known)}{did_you_mean(name, known)}"
            report.problem(line, f"{field}.{shown(name)}", said)
            if report.full:
                return None
            continue
        text = read_text(value, f"{field}.{shown(name)}", report)
        if text is not None:
            found[name] = text
    return found if len(found) == len(node.pairs) else None
