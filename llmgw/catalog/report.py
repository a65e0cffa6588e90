"""What is wrong with a catalog, and what is only odd: collected, never raised one by one.

Pure. The readers of a catalog add to one `Report`; whoever asked for the reading turns it into
`FILE:LINE: field: message` lines, sorted as the file is.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

MOST_PROBLEMS = 200
"""Nobody reads more, and finding near words for a hundred thousand wrong ones takes minutes."""


class Remark(NamedTuple):
    """One thing to say about one place. `line` counts from 1."""

    line: int
    field: str
    message: str


class Report:
    """Collects problems, which make a catalog invalid, and warnings, which do not."""

    def __init__(self) -> None:
        self._problems: list[Remark] = []
        self._warnings: list[Remark] = []

    @property
    def full(self) -> bool:
        """Whether so much is wrong that looking further helps nobody."""
        return len(self._problems) > MOST_PROBLEMS

    def problem(self, line: int, field: str, message: str) -> None:
        """Note a mistake that must be corrected. The one after the most says that it ends there."""
        if len(self._problems) == MOST_PROBLEMS:
            field, message = "file", f"more than {MOST_PROBLEMS} mistakes; correct these first"
        if not self.full:
            self._problems.append(Remark(line, field, message))

    def warn(self, line: int, field: str, message: str) -> None:
        """Note something that is valid and perhaps not meant."""
        if len(self._warnings) < MOST_PROBLEMS:
            self._warnings.append(Remark(line, field, message))

    def remarks(self) -> tuple[Remark, ...]:
        """Return every problem as it was noted."""
        return tuple(self._problems)

    def problems(self, file_name: str) -> tuple[str, ...]:
        """Return every problem as `FILE:LINE: field: message`, in the order of the file."""
        return _lines(file_name, self._problems)

    def warnings(self, file_name: str) -> tuple[str, ...]:
        """Return every warning, formatted as problems are."""
        return _lines(file_name, self._warnings)


def _lines(file_name: str, remarks: list[Remark]) -> tuple[str, ...]:
    in_order = sorted(remarks, key=lambda remark: remark.line)
    return tuple(f"{file_name}:{line}: {field}: {message}" for line, field, message in in_order)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that a misspelt one is nearest to, if any is near."""
    found = difflib.get_close_matches(word[:80].lower(), list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean NEAR?` for a misspelt word, or nothing where none is near."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""


def shown(key: str) -> str:
    """Return a key as it may stand in a message: one short line, whatever was in the file."""
    return key if key.isprintable() and 0 < len(key) <= 64 else ascii(key)[:66]
