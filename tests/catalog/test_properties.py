"""Whatever bytes come, a catalog is read or refused; nothing else happens."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.catalog.load import check_file, parse
from llmgw.catalog.validate import check_text
from llmgw.errors import CatalogError

FIELDS = ["name", "engine", "class", "memory", "source", "command", "args", "env", "tp", "gpus"]
FIELDS += ["nodes", "pp", "replicas", "health", "revision", "context", "start_seconds", "<<", "x"]

PIECES = [
    "models:",
    "\n",
    "  ",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "&a ",
    "*a",
    "!!x ",
    "'",
    '"',
]
PIECES += ["\t", "#", "|", ">", "%", "---", "...", "? ", "\\", "no", "1", "name", "\0", "\ud800"]
PIECES += ["llama.cpp", "16GiB", "${A}", "é", "\u2028"]

yaml_like = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | st.sampled_from(FIELDS), inner, max_size=4)
    ),
    max_leaves=8,
)
entries = st.dictionaries(st.sampled_from(FIELDS), values, max_size=8)


def read_or_refused(text: str) -> None:
    try:
        catalog = parse(text, "c.yaml", "/catalogs", home="/home/x")
    except CatalogError as error:
        assert error.problems
        assert all(problem.startswith("c.yaml:") for problem in error.problems)
    else:
        assert catalog.models or "[]" in text


@given(st.text() | yaml_like)
def test_any_text_is_read_or_refused(text: str) -> None:
    read_or_refused(text)


@given(st.lists(entries, max_size=3))
def test_any_values_in_known_fields_are_read_or_refused(models: list[object]) -> None:
    read_or_refused(yaml.safe_dump({"models": models}, allow_unicode=True))


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_any_bytes_in_a_file_are_read_or_refused(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.yaml")
        path.write_bytes(raw)
        checked = check_file(path)
    assert checked.problems or checked.catalog.models


@given(yaml_like)
def test_a_reading_is_the_same_every_time(text: str) -> None:
    assert check_text(text, "c.yaml", "/") == check_text(text, "c.yaml", "/")
