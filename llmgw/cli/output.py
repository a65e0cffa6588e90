"""Printing rows: as a table, JSON or YAML, on stdout alone.

Programs get exactly what the views return, as UTF-8. People get aligned columns in which
nothing that came from outside can move the cursor.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import typer

from llmgw.cli.options import Format
from llmgw.errors import LlmgwError
from llmgw.masking import visible

T = TypeVar("T")

CELL_CHARACTERS = 96
"""What a table shows of one cell; `wide` shows all of it."""

_GAP = "  "
_PIPE_CLOSED = 141


class Column(NamedTuple):
    """One column: its header, what it shows of a row, and whether only `wide` shows it.

    A `whole` one is never cut: for the last of a table whose point it is.
    """

    header: str
    cell: Callable[[Any], object]
    wide: bool = False
    right: bool = False
    whole: bool = False


def emit(data: T, output: Format, table: Callable[[T, bool], Iterable[str]]) -> None:
    """Print `data`; `table(data, wide)` gives its lines for people."""
    if output is Format.JSON:
        _write(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")
    elif output is Format.YAML:
        _write(_as_yaml(data))
    else:
        write_lines(table(data, output is Format.WIDE))


def emit_more(
    rows: Sequence[T], output: Format, table: Callable[[Sequence[T], bool], Iterable[str]]
) -> None:
    """Print rows of a list that has no end: JSON is one object a line, YAML one document a row."""
    if output is Format.JSON:
        _write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    elif output is Format.YAML:
        _write(b"".join(b"---\n" + _as_yaml(row) for row in rows))
    else:
        write_lines(table(rows, output is Format.WIDE))


def table_lines(
    rows: Sequence[Any], columns: Sequence[Column], wide: bool, widths: list[int] | None = None
) -> Iterator[str]:
    """Yield an aligned table with its header.

    `widths` carries the widths of columns from one call to the next; the header comes only
    with the first.
    """
    shown = [column for column in columns if wide or not column.wide]
    cells = [[_cell(column.cell(row), wide or column.whole) for column in shown] for row in rows]
    if not widths:
        cells.insert(0, [column.header for column in shown])
    widths = widths if widths is not None else []
    widths.extend([0] * (len(shown) - len(widths)))
    for line in cells:
        widths[:] = map(max, widths, map(_width, line))
    for line in cells:
        padded = map(_pad, line, widths, (column.right for column in shown))
        yield _GAP.join(padded).rstrip()


def _cell(value: object, wide: bool) -> str:
    if value is None or value == "" or value == ():
        return "-"
    if isinstance(value, tuple | list):
        value = ", ".join(map(str, value))
    text = visible(str(value))
    return text if wide or len(text) <= CELL_CHARACTERS else text[: CELL_CHARACTERS - 1] + "…"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    marks = sum(unicodedata.combining(c) > 0 for c in text)
    return len(text) + wide - marks


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


def _as_yaml(data: object) -> bytes:
    import yaml

    plain = msgspec.to_builtins(data)
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)).encode()


def write_lines(lines: Iterable[str]) -> None:
    """Print lines for people."""
    shown = (line if line.isprintable() else visible(line) for line in lines)
    text = "".join(f"{line}\n" for line in shown)
    _write(text.encode(getattr(sys.stdout, "encoding", None) or "utf-8", "backslashreplace"))


def _write(payload: bytes) -> None:
    """Write to stdout at once. A reader that went away, such as `head`, is no failure."""
    if sys.stdout is None:  # as Python has it where the caller has closed it
        raise LlmgwError("the output cannot be written: standard output is closed")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(payload)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # What is still buffered would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_PIPE_CLOSED) from None
    except OSError as error:
        raise LlmgwError(f"the output cannot be written: {error.strerror}") from error
