"""How long `llmgw --help` takes, against the smallest program that typer can make.

The peer is one command and nothing else, started by the same interpreter, installed the same way
and printing its own help.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.measure import Result, Turns, at_most

ROOT = Path(__file__).parents[2]
TURNS = 30
GOAL = 1.5
BARE = """\
import typer

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def hello() -> None:
    print("hello")


app()
"""
LLMGW = "from llmgw.cli.main import run\n\nrun()\n"


def benchmark() -> Iterator[Result]:
    """Measure."""
    turns = Turns()
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        bare, llmgw = Path(folder, "bare.py"), Path(folder, "llmgw_program.py")
        bare.write_text(BARE)
        llmgw.write_text(LLMGW)
        for program in (bare, llmgw):  # writes what Python compiles, and warms the disk's cache
            help_of(program)
        for _ in range(TURNS):
            with turns.ours():
                help_of(llmgw)
            with turns.peer():
                help_of(bare)
    peer = f"a typer program with one command, {turns.peer_seconds * 1000:.0f} ms"
    yield at_most(GOAL, "start of llmgw --help", turns.slowdown, "times the peer", peer)
    yield Result("start of llmgw --help", turns.ours_seconds * 1000, "ms", peer)


def help_of(program: Path) -> None:
    """Run the program for its help. Both find llmgw where this process found it."""
    subprocess.run(
        [sys.executable, str(program), "--help"],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
