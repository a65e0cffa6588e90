"""Reading a catalog: from a text, purely, and from a file, in one thin function.

`parse` and `check_text` touch nothing outside their arguments. `check_file` and `load` read the
file, look whether local sources exist, and estimate from these what memory was not given; the
command line calls them.
"""

from __future__ import annotations

import codecs
from pathlib import Path

from llmgw.catalog.classes import PROCESSOR
from llmgw.catalog.draft import Look, ModelFacts
from llmgw.catalog.entries import Catalog, Entry
from llmgw.catalog.tree import MAX_CHARACTERS
from llmgw.catalog.validate import Checked, check_text
from llmgw.errors import CatalogError, ModelUnreadable
from llmgw.files import NoRegularFile, read_regular
from llmgw.models.estimate import estimate
from llmgw.models.metadata import read, side_files
from llmgw.models.types import Unknown

_MAX_BYTES = 4 * MAX_CHARACTERS
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def parse(text: str, file_name: str, base_dir: str | Path, home: str | None = None) -> Catalog:
    """Return the catalog that `text` describes.

    `base_dir` is what relative sources start from, `home` what `~/` stands for. Raises
    `CatalogError` with every problem, one `FILE:LINE: field: message` each, in order of lines.
    """
    return _valid(check_text(text, file_name, str(base_dir), home)).catalog


def look_into(entry: Entry) -> ModelFacts:
    """Return what the files of an entry's model say; the weights themselves stay unread."""
    try:
        beside = side_files(entry.args)
        metadata = read(entry.source or "", entry.revision, side_files=beside)
    except ModelUnreadable as error:
        return ModelFacts(unknown=str(error))
    found = estimate(
        metadata,
        engine=entry.engine,
        context=entry.context,
        parallel=entry.parallel,
        cache_key_dtype=entry.cache_key_dtype,
        cache_value_dtype=entry.cache_value_dtype,
        tp=entry.tp,
        pp=entry.pp,
        gpu_memory_fraction=entry.gpu_memory_fraction,
        processor=entry.classes == (PROCESSOR,),
    )
    heads = metadata.attention_heads
    if isinstance(found, Unknown):
        return ModelFacts(unknown=found.reason, heads=heads)
    bound = f"nothing is known of the architecture {metadata.architecture}: this is an upper bound"
    remark = bound if found.cautious else None
    return ModelFacts(memory_bytes=found.total_bytes, heads=heads, remark=remark)


def check_file(path: Path, look: Look | None = look_into) -> Checked:
    """Read the file at `path` and return what is good, what is wrong and what is odd about it."""
    name = str(path)
    try:
        raw = read_regular(path, _MAX_BYTES + 1)
    except NoRegularFile:
        return _unreadable(name, 1, "is no regular file; write the catalog into one")
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
    return check_text(text, name, base_dir, str(Path.home()), _exists, look)


def load(path: Path, look: Look | None = look_into) -> Checked:
    """Return the valid catalog at `path` with its warnings; raises `CatalogError` as `parse`."""
    return _valid(check_file(path, look))


def _exists(source: str) -> bool:
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # a name that no file system takes
        return False


def _valid(checked: Checked) -> Checked:
    if checked.problems:
        raise CatalogError(checked.problems)
    return checked


def _unreadable(name: str, line: int, message: str) -> Checked:
    return Checked(catalog=Catalog(), problems=(f"{name}:{line}: file: {message}",), warnings=())
