"""Reading a catalog: from a text, purely, and from a file, in one thin function.

`parse` and `check_text` touch nothing outside their arguments. `check_file` and `load` read the
file and look whether local sources exist; the command line calls them.
"""

from __future__ import annotations

import codecs
from pathlib import Path

from llmgw.catalog.entries import Catalog
from llmgw.catalog.tree import MAX_CHARACTERS
from llmgw.catalog.validate import Checked, check_text
from llmgw.errors import CatalogError

_MAX_BYTES = 4 * MAX_CHARACTERS
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def parse(text: str, file_name: str, base_dir: str | Path, home: str | None = None) -> Catalog:
    """Return the catalog that `text` describes.

    `base_dir` is what relative sources start from, `home` what `~/` stands for. Raises
    `CatalogError` with every problem, one `FILE:LINE: field: message` each, in order of lines.
    """
    return _valid(check_text(text, file_name, str(base_dir), home)).catalog


def check_file(path: Path) -> Checked:
    """Read the file at `path` and return what is good, what is wrong and what is odd about it."""
    name = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        return _unreadable(name, 1, f"cannot be read: {error.strerror or error}")
    if raw.startswith(_UTF16_MARKS):
        return _unreadable(name, 1, "is UTF-16; save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return _unreadable(name, line, "is not UTF-8 here; save it as UTF-8")
    base_dir = str(path.absolute().parent)
    return check_text(text, name, base_dir, str(Path.home()), lambda source: Path(source).exists())


def load(path: Path) -> Checked:
    """Return the valid catalog at `path` with its warnings; raises `CatalogError` as `parse`."""
    return _valid(check_file(path))


def _valid(checked: Checked) -> Checked:
    if checked.problems:
        raise CatalogError(checked.problems)
    return checked


def _unreadable(name: str, line: int, message: str) -> Checked:
    return Checked(catalog=Catalog(), problems=(f"{name}:{line}: file: {message}",), warnings=())
