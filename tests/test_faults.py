"""Is every fault of docs/faults answered by a test that exists?

The tables there are read, not imported: a row names what is injected, what must then be true, and
the tests that show it. A row without a test, a test that is not there any more, or a row that went
missing fails here.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/faults"
ROWS = {
    "log.md": [f"N{n}" for n in range(1, 10)],
    "controller.md": [f"C{n}" for n in range(1, 11)],
    "agent.md": [f"A{n}" for n in range(1, 14)],
    "engine.md": [f"E{n}" for n in range(1, 11)],
    "devices.md": [
        *(f"X{n}" for n in (79, 48, 63, 64, 94, 95, 13)),
        *(f"G{n}" for n in range(1, 8)),
    ],
    "bytes.md": [f"B{n}" for n in range(1, 24)],
}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(name: str) -> dict[str, list[str]]:
    """The table's rows by their key: the cells behind it."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / name).read_text().splitlines():
        key, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
        if line.startswith("|") and re.fullmatch(r"[A-Z]\d+", key):
            assert key not in found, f"docs/faults/{name}: {key} stands there twice"
            found[key] = cells
    return found


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


@pytest.mark.parametrize("name", ROWS)
def test_every_fault_has_its_row(name: str) -> None:
    assert list(rows(name)) == ROWS[name]


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, keys in ROWS.items() for key in keys]
)
def test_every_row_says_what_must_be_true_and_which_tests_show_it(name: str, key: str) -> None:
    injected, true, where, shown = rows(name)[key]
    assert injected and true and where in ("real", "simulated", "both", "pure")
    named = TEST.findall(shown)
    assert named, f"docs/faults/{name}: {key} names no test"
    missing = [f"{path}::{test}" for path, test in named if test not in functions_of(path)]
    assert not missing, f"docs/faults/{name}: {key} names tests that are not there: {missing}"
