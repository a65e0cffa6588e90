"""Style that a formatter cannot see, read off the source: sizes, docstrings, errors, purity.

The numbers only ever go down: whoever needs a longer function finds a shorter one instead.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP_LEVEL = {"llmgw", "schemas", "tests", "ops", "docs"}

MOST_LINES_OF_A_MODULE = 600
MOST_LINES_OF_A_FUNCTION = 60
MOST_LINES_OF_95_PERCENT = 40

PURE = (
    *("llmgw/core/", "llmgw/views/", "llmgw/engines/", "llmgw/wire.py", "llmgw/masking.py"),
    *("llmgw/catalog/entries.py", "llmgw/hardware/types.py", "llmgw/hardware/classes.py"),
)
IMPURE_MODULES = {
    "asyncio",
    "datetime.datetime",
    "io",
    "logging",
    "os",
    "pathlib",
    "random",
    "time",
}
IMPURE_CALLS = {"open", "input", "print", "now", "utcnow", "today", "eval", "exec", "__import__"}

LOGGING_CALLS = {"debug", "info", "warning", "error", "critical", "exception", "log"}
"""Methods whose call in a broad `except` shows that the failure is told to somebody."""

# Written in parts, so that this file does not find itself.
UNFINISHED = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")))
MACHINE_BOUND = re.compile(
    "|".join(
        (
            r"(?<![\w.])/(?:ro" + r"ot|wo" + r"rk)/",
            r"/opt/(?:whe" + r"els|py" + r"pi)",
            r"py" + r"pi\.org",
            r"python" + r"hosted\.org",
            r"registry\.npm" + r"js\.org",
            r"deb\.deb" + r"ian\.org",
            r"-index-" + r"url|find-" + r"links",
        )
    )
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def python_files(*folders: str) -> tuple[Path, ...]:
    return tuple(sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def functions(*folders: str) -> Iterator[tuple[str, Function]]:
    for path in python_files(*folders):
        for node in ast.walk(tree(path)):
            if isinstance(node, Function):
                yield f"{place(path)}:{node.lineno} {node.name}", node


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def length(function: Function) -> int:
    """Lines from `def` to the end, without the docstring: explaining is free."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    explained = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - explained


def text_files() -> Iterator[Path]:
    suffixes = {
        ".py",
        ".md",
        ".toml",
        ".yaml",
        ".yml",
        ".json",
        ".jsonl",
        ".lock",
        ".sh",
        ".service",
    }
    for folder in TOP_LEVEL:
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.name != ".git")
    yield from (ROOT / ".ci").iterdir()


def test_no_module_is_longer_than_one_can_hold_in_the_head() -> None:
    lengths = {place(path): path.read_text().count("\n") for path in python_files("llmgw", "tests")}
    assert {name: n for name, n in lengths.items() if n > MOST_LINES_OF_A_MODULE} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        name
        for name, node in functions("llmgw", "tests")
        if length(node) > MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []


def test_nearly_all_functions_are_short() -> None:
    lengths = [length(node) for _, node in functions("llmgw")]
    assert statistics.quantiles(lengths, n=20)[-1] <= MOST_LINES_OF_95_PERCENT


def test_every_module_says_what_it_is() -> None:
    undocumented = [
        place(path)
        for path in python_files("llmgw", "tests")
        if ast.get_docstring(tree(path)) is None and path.read_text().strip()
    ]
    assert undocumented == []


def test_every_public_function_is_annotated() -> None:
    bare = [
        name
        for name, node in functions("llmgw")
        if not node.name.startswith("_") and not annotated(node)
    ]
    assert bare == []


def annotated(function: Function) -> bool:
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    named = [a for a in arguments if a is not None and a.arg not in {"self", "cls"}]
    return function.returns is not None and all(a.annotation is not None for a in named)


def test_no_failure_is_swallowed() -> None:
    swallowed = [
        f"{place(path)}:{handler.lineno}"
        for path in python_files("llmgw", "tests")
        for handler in ast.walk(tree(path))
        if isinstance(handler, ast.ExceptHandler) and is_broad(handler) and is_silent(handler)
    ]
    assert swallowed == []


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(name) in {"Exception", "BaseException"} for name in caught)


def is_silent(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    for node in ast.walk(handler):
        if isinstance(node, ast.Raise):
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in LOGGING_CALLS:
                return False
    return True


def test_pure_modules_neither_look_at_a_clock_nor_touch_the_machine() -> None:
    found = [
        f"{place(path)}:{line} {what}"
        for path in python_files("llmgw")
        if place(path).startswith(PURE)
        for line, what in impurities(tree(path))
    ]
    assert found == []


def impurities(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, name) for name in imported(node) if name in IMPURE_MODULES)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in IMPURE_CALLS:
                yield node.lineno, f"{name}()"


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names]


def test_tests_wait_for_conditions_and_never_for_a_span_of_time() -> None:
    sleeping = [
        f"{place(path)}:{node.lineno}"
        for path in python_files("tests")
        if place(path) != "tests/support/wait.py"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"time.sleep", "asyncio.sleep", "anyio.sleep", "sleep"}
        and not (node.args and ast.unparse(node.args[0]) == "0")
    ]
    assert sleeping == []


def test_nothing_is_left_for_later_and_nothing_is_bound_to_one_machine() -> None:
    found = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if UNFINISHED.search(line) or MACHINE_BOUND.search(line):
                found.append(f"{place(path)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_the_top_level_stays_small() -> None:
    ignored = {"build", "dist"}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."}
    assert folders - ignored <= TOP_LEVEL


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("try: f()\nexcept: log.error('x'); raise", True),
        ("try: f()\nexcept Exception: pass", True),
        ("try: f()\nexcept (OSError, BaseException): return_code = 1", True),
        ("try: f()\nexcept Exception: log.warning('x')", False),
        ("try: f()\nexcept Exception: raise", False),
        ("try: f()\nexcept OSError: pass", False),
    ],
)
def test_the_rule_about_swallowed_failures_can_tell_them_apart(source: str, caught: bool) -> None:
    handler = next(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ExceptHandler))
    assert (is_broad(handler) and is_silent(handler)) is caught


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from os import environ",
        "open('x')",
        "d.now()",
    ],
)
def test_the_rule_about_purity_can_fail(source: str) -> None:
    assert list(impurities(ast.parse(source)))
