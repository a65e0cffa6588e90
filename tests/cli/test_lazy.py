"""The program's list of commands is true although none of them is imported for it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from inspect import getdoc

import pytest
import typer

from llmgw.cli.lazy import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_is_what_it_says_of_itself(name: str) -> None:
    lazy = COMMANDS[name]
    found = getattr(import_module(lazy.module), lazy.attribute)
    said = found.info.help if isinstance(found, typer.Typer) else getdoc(found)
    assert isinstance(said, str)
    assert " ".join(said.split()).startswith(lazy.summary.rstrip("."))


def test_a_list_of_names_imports_no_command() -> None:
    text = (
        "import sys\nfrom llmgw.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(m for m in sys.modules if m.startswith('llmgw.')), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert "doctor" in done.stdout
    assert "llmgw.cli.ctl" not in done.stderr
    assert "msgspec" not in done.stderr


def test_a_near_name_is_proposed() -> None:
    command = [sys.executable, "-m", "llmgw", "docter"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Did you mean 'doctor'?" in done.stderr
    assert done.returncode == 2
