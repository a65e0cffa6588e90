"""What holds for every test: no blocking call in async code, nothing left running, one seed.

Fixtures of one folder live in that folder's conftest.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator

import hypothesis
import pytest
import structlog
from blockbuster import blockbuster_ctx

from tests.support import leftovers
from tests.support.wait import until_sync

pytest.register_assert_rewrite("llmgw.testing.builders")  # before any test imports it

# No deadlines: a slow machine fails no test. A failure prints the blob that reproduces it; in CI
# the examples are the same in every run, so that a red run is red again.
hypothesis.settings.register_profile("developer", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "developer")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite`: scenarios and golden files are written anew, for the diff to be read."""
    parser.addoption("--rewrite", action="store_true", help="write golden files and scenarios anew")


def pytest_configure(config: pytest.Config) -> None:
    """Tell the tests that compare with files, in every process that they start."""
    if config.getoption("--rewrite"):
        os.environ["LLMGW_REWRITE"] = "1"


# Answered from the kernel's memory in microseconds: names and metadata of local files.
QUICK = (
    *("os.access", "os.getcwd", "os.listdir", "os.mkdir", "os.readlink", "os.remove", "os.rename"),
    *("os.replace", "os.rmdir", "os.scandir", "os.stat", "os.statvfs", "os.unlink"),
    *("os.path.abspath", "os.path.islink", "os.path.ismount"),
)

# Where a small file is read or written on purpose: the file of llmgw, and its functions.
ALLOWED: tuple[tuple[str, frozenset[str]], ...] = ()


@pytest.fixture(autouse=True)
def no_blocking_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Raise `BlockingError` where llmgw's own async code blocks the event loop."""
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        yield
        return
    with blockbuster_ctx(scanned_modules=["llmgw"]) as guard:
        for name in QUICK:
            guard.functions[name].deactivate()
        for function in guard.functions.values():
            for file, names in ALLOWED:
                function.can_block_in(file, names)
        yield


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Undo what a test said of logging: its stream is closed once it is over."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail the run when a process that it started outlives it."""
    mark = leftovers.mark_this_run()
    yield
    try:
        until_sync(lambda: not leftovers.leftovers(mark), what="every process of the run has ended")
    except AssertionError:
        remaining = leftovers.leftovers(mark)
        leftovers.end(remaining)
        lines = [f"{process.pid}: {process.command_line}" for process in remaining]
        pytest.fail("processes were left running:\n" + "\n".join(lines), pytrace=False)
