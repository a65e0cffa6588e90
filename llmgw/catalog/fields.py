"""Readers of one value each: a node of the tree in, a checked value out.

Pure. A reader returns `None` when the value is wrong, having said why in the report; it never
guesses. Numbers, texts and lists are told apart by how they are written, as YAML 1.2 does it:
`no` and `on` are texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from llmgw.catalog.classes import PATTERN
from llmgw.catalog.report import Report, did_you_mean
from llmgw.catalog.rules import NAME
from llmgw.catalog.tree import Broken, Items, Node, Pairs, Scalar

Reader = Callable[[Node, str, Report], Any]
"""Takes a value, the name of its field for messages, and where to report what is wrong."""

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)")
_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")
_SIGNED_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,15}")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?")
_CLASS = re.compile(PATTERN)
_PATH = re.compile(r"/[\x21-\x7e]{0,255}")

_SMALLEST_MEMORY_BYTES = 2**20
_LARGEST_MEMORY_BYTES = 2**50
_LONGEST_TEXT = 8192
_LONGEST_SECONDS = 7 * 86400.0
_NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_OLD_TRUTHS = frozenset({"yes", "no", "on", "off", "y", "n"})


def read_text(node: Node, field: str, report: Report, *, lines: bool = False) -> str | None:
    """Return a text as it is written; only with `lines` may it have tabs and several lines."""
    if not isinstance(node, Scalar):
        report_shape(node, field, "must be one text", report)
        return None
    if node.plain and node.text in _NOTHING:
        report.problem(node.line, field, 'has no value; for an empty text write ""')
        return None
    if node.plain and node.text in _TRUTHS:
        report.problem(node.line, field, f'must be a text; if it is one, write "{node.text}"')
        return None
    if node.plain and node.text.lower() in _OLD_TRUTHS:
        said = f"{node.text} is read as a text, not as true or false; quotes make that plain"
        report.warn(node.line, field, said)
    if len(node.text) > _LONGEST_TEXT:
        report.problem(node.line, field, f"is longer than {_LONGEST_TEXT} characters")
        return None
    allowed = "\n\t" if lines else ""
    if not all(character.isprintable() or character in allowed for character in node.text):
        report.problem(node.line, field, "holds a control character; remove it")
        return None
    return node.text


def read_name(node: Node, field: str, report: Report) -> str | None:
    """Return a model's name: safe as a path, a subject, a host label and in any shell."""
    text = read_text(node, field, report)
    return _matching(
        NAME,
        text,
        node,
        field,
        "must be 1 to 63 of a-z, 0-9, `.`, `_` and `-`, and begin with a letter or a digit",
        report,
    )


def read_path(node: Node, field: str, report: Report) -> str | None:
    """Return the path part of a URL."""
    text = read_text(node, field, report)
    return _matching(_PATH, text, node, field, "must be a path such as /health", report)


def read_texts(node: Node, field: str, report: Report) -> tuple[str, ...] | None:
    """Return a list of texts. One text is refused: nobody here splits words as a shell would."""
    if isinstance(node, Scalar):
        first, *rest = node.text.split()[:2] or [field]
        example = ", ".join([first, *rest])
        report.problem(node.line, field, f"must be a list; write a list, such as [{example}]")
        return None
    if not isinstance(node, Items):
        report_shape(node, field, "must be a list", report)
        return None
    words = [
        read_text(item, f"{field}[{at}]", report, lines=True) for at, item in enumerate(node.nodes)
    ]
    texts = tuple(word for word in words if word is not None)
    return texts if len(texts) == len(words) else None


def read_classes(node: Node, field: str, report: Report) -> tuple[str, ...] | None:
    """Return one device class or several, in order of preference; `*` stands for anything."""
    if isinstance(node, Items) and not node.nodes:
        report.problem(node.line, field, "is empty; name at least one device class, or '*'")
        return None
    if isinstance(node, Items):
        texts = read_texts(node, field, report)
    else:
        text = read_text(node, field, report)
        texts = None if text is None else (text,)
    if texts is None:
        return None
    good = True
    for text in texts:
        if not _CLASS.fullmatch(text):
            good = False
            said = f"{text!r} is no device class: they are lower case, such as a100-80g or h100-*"
            report.problem(node.line, field, said)
    if len(set(texts)) < len(texts):
        report.problem(node.line, field, "names the same class twice")
        return None
    return texts if good else None


def read_count(node: Node, field: str, report: Report) -> int | None:
    """Return a whole number of at least 1."""
    return _read_whole(node, field, 1, report)


def read_count_or_none(node: Node, field: str, report: Report) -> int | None:
    """Return a whole number of at least 0."""
    return _read_whole(node, field, 0, report)


def read_signed(node: Node, field: str, report: Report) -> int | None:
    """Return a whole number, negative or not."""
    wanted = "must be a whole number, such as 10 or -10"
    text = _written(_SIGNED_NUMBER.fullmatch, node, field, wanted, report)
    return None if text is None else int(text)


def read_fraction(node: Node, field: str, report: Report) -> float | None:
    """Return a number; whether it is a good fraction is asked by the rules."""
    wanted = "must be a number above 0 and at most 1, such as 0.9"
    text = _written(_NUMBER.fullmatch, node, field, wanted, report)
    return None if text is None else float(text)


def read_truth(node: Node, field: str, report: Report) -> bool | None:
    """Return true or false, which are written so and in no other way."""
    wanted = "must be true or false"
    text = _written(_TRUTHS.__contains__, node, field, wanted, report)
    return None if text is None else _TRUTHS[text]


def choice_of(*words: str) -> Reader:
    """Return a reader of one of a few words."""

    def read(node: Node, field: str, report: Report) -> str | None:
        text = read_text(node, field, report)
        if text is not None and text not in words:
            said = f"must be one of {', '.join(words)}, not {text!r:.40}{did_you_mean(text, words)}"
            report.problem(node.line, field, said)
            return None
        return text

    return read


def read_seconds(node: Node, field: str, report: Report) -> float | None:
    """Return a positive number of seconds, at most a week."""
    text = _number_text(node, field, "must be a number of seconds, such as 600", report)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or not 0 < float(text) <= _LONGEST_SECONDS:
        said = f"must be a number of seconds above 0 and at most a week, not {text!r:.40}"
        report.problem(node.line, field, said)
        return None
    return float(text)


def read_memory(node: Node, field: str, report: Report) -> int | None:
    """Return a size in bytes: `16GiB`, `900MiB`, `80GB`, or a bare number of bytes."""
    wanted = "must be a size such as 16GiB, 900MiB or 80GB"
    text = _number_text(node, field, wanted, report, quoted=True)
    if text is None:
        return None
    match = _SIZE.fullmatch(text)
    unit = match[2].upper() or "B" if match else ""
    if match is None or unit not in _UNITS:
        report.problem(node.line, field, f"{wanted}, not {text!r:.40}")
        return None
    size_bytes = round(float(match[1]) * _UNITS[unit])
    if size_bytes < _SMALLEST_MEMORY_BYTES:
        hint = f"; for gibibytes write {match[1]}GiB" if unit == "B" else ""
        report.problem(node.line, field, f"is only {size_bytes} bytes{hint}")
        return None
    if size_bytes > _LARGEST_MEMORY_BYTES:
        report.problem(node.line, field, f"{text!r:.40} is more than any device has")
        return None
    return size_bytes


def _read_whole(node: Node, field: str, least: int, report: Report) -> int | None:
    wanted = f"must be a whole number of at least {least}"

    def is_good(text: str) -> bool:
        return _WHOLE_NUMBER.fullmatch(text) is not None and int(text) >= least

    text = _written(is_good, node, field, wanted, report)
    return None if text is None else int(text)


def _written(
    is_good: Callable[[str], object], node: Node, field: str, wanted: str, report: Report
) -> str | None:
    """Return the text of a value that is written without quotes, if it is a good one."""
    text = _number_text(node, field, wanted, report)
    if text is not None and not is_good(text):
        report.problem(node.line, field, f"{wanted}, not {text!r:.40}")
        return None
    return text


def _number_text(
    node: Node, field: str, wanted: str, report: Report, *, quoted: bool = False
) -> str | None:
    if not isinstance(node, Scalar):
        report_shape(node, field, wanted, report)
        return None
    if node.plain and node.text in _NOTHING:
        report.problem(node.line, field, f"has no value; it {wanted}")
        return None
    if not node.plain and not quoted:
        report.problem(node.line, field, f"{wanted}; write it without quotes")
        return None
    return node.text


def _matching(
    pattern: re.Pattern[str], text: str | None, node: Node, field: str, wanted: str, report: Report
) -> str | None:
    if text is not None and not pattern.fullmatch(text):
        report.problem(node.line, field, f"{text!r:.80} {wanted}")
        return None
    return text


def report_shape(node: Node, field: str, wanted: str, report: Report) -> None:
    """Say that a value has another shape than the field wants; of a broken one it was said."""
    if isinstance(node, Broken):
        return
    given = {Scalar: "one value", Items: "a list", Pairs: "a mapping"}[type(node)]
    report.problem(node.line, field, f"{wanted}, not {given}")
