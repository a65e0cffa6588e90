"""What YAML allows and a catalog does not, each with its own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.catalog.load import check_file, load, parse
from llmgw.catalog.tree import MAX_CHARACTERS
from llmgw.catalog.validate import check_text
from llmgw.errors import CatalogError

ENTRY = "  - {name: m, engine: vllm, class: cpu, memory: 1GiB, source: org/m"


def only_problem(text: str) -> str:
    (problem,) = check_text(text, "c.yaml", "/catalogs").problems
    return problem


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (f"models:\n{ENTRY}, name: n}}\n", 2, "name: is given twice; it stands in line 2"),
        (f"models:\n{ENTRY}, env: &e {{A: b}}}}\n", 2, "env: an anchor"),
        (f"models:\n{ENTRY}, env: *e}}\n", 2, "env: an alias"),
        (f"models:\n{ENTRY}, revision: !!str main}}\n", 2, "revision: a tag"),
        (f"models: !!python/object/apply:os.system\n{ENTRY}}}\n", 1, "models: a tag"),
        ("models:\n\t- name: m\n", 2, "a tab where YAML wants spaces"),
        ("models:\n  - name: a: b\n", 2, "in quotes"),
        ("models: [\n", 2, "expected the node content"),
        ("models: 'x\n", 2, "found unexpected end of stream"),
        (f"models:\n{ENTRY}}}\n---\nmodels:\n", 3, "a second document"),
        ("models:\n  - name: \x00\n", 2, "the character U+0000"),
        ('models:\n  - name: "\\UFFFFFFFF"\n', 2, "out of range"),
        ("%YAML " + "1" * 5000 + ".1\n---\nmodels:\n", 1, "out of range"),
        ("models: " + "[" * 5000, 1, "nested deeper"),
        ("- " * 5000, 1, "nested deeper"),
        ("#" * (MAX_CHARACTERS + 1), 1, "longer than 512 KiB"),
    ],
)
def test_a_trap_is_answered_with_its_line(text: str, line: int, said: str) -> None:
    problem = only_problem(text)
    assert problem.startswith(f"c.yaml:{line}: ")
    assert said in problem


@pytest.mark.parametrize("value", [r'"a\0b"', r'"\uD800"', r'"a\x1bb"'])
def test_a_control_character_in_a_value_is_refused(value: str) -> None:
    text = f"models:\n{ENTRY}, args: [{value}]}}\n"
    assert only_problem(text).endswith("args[0]: holds a control character; remove it")


def test_a_key_that_is_no_word_is_refused() -> None:
    assert "a key must be a word" in only_problem(f"models:\n{ENTRY}, ? [a] : b}}\n")


def test_a_word_that_old_yaml_takes_for_false_is_a_text_with_a_warning() -> None:
    text = "models:\n  - {name: no, engine: vllm, class: cpu, memory: 1GiB, source: org/m}\n"
    checked = check_text(text, "c.yaml", "/")
    assert [entry.name for entry in checked.catalog.models] == ["no"]
    assert checked.problems == ()
    assert checked.warnings == (
        "c.yaml:2: name: no is read as a text, not as true or false; quotes make that plain",
    )


def test_true_where_a_text_belongs_asks_for_quotes() -> None:
    assert 'write "true"' in only_problem(f"models:\n{ENTRY}, env: {{A: true}}}}\n")
    assert check_text(f'models:\n{ENTRY}, env: {{A: "true"}}}}\n', "c", "/").problems == ()


def test_numbers_in_texts_stay_as_they_are_written() -> None:
    catalog = parse(f"models:\n{ENTRY}, args: [0.90, 007, 22:22]}}\n", "c.yaml", "/")
    assert catalog.models[0].args == ("0.90", "007", "22:22")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"models:\n  - name: caf\xe9\n", "2: file: is not UTF-8 here"),
        ("models:\n".encode("utf-16"), "1: file: is UTF-16"),
    ],
)
def test_a_file_in_another_encoding_says_which_line(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(raw)
    (problem,) = check_file(path).problems
    assert said in problem


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbfmodels:\n" + ENTRY.encode() + b"}\n")
    assert load(path).catalog.models[0].name == "m"


def test_a_file_that_is_not_there_is_a_catalog_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(CatalogError, match="cannot be read: Is a directory"):
        load(tmp_path)
