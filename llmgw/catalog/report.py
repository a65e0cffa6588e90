"""What is wrong with a catalog, and what is only odd: collected, never raised one by one.

Pure. The readers of a catalog add to one `Report`; whoever asked for the reading turns it into
`FILE:LINE: field: message` lines, sorted as the file is.
"""

from __future__ import annotations

from typing import NamedTuple


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

    def problem(self, line: int, field: str, message: str) -> None:
        """Note a mistake that must be corrected."""
        self._problems.append(Remark(line, field, message))

    def warn(self, line: int, field: str, message: str) -> None:
        """Note something that is valid and perhaps not meant."""
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
