"""The units for systemd: what they promise, and that systemd takes them."""

from __future__ import annotations

import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[1] / "ops" / "systemd").glob("*.service"))


def service(name: str) -> dict[str, str]:
    """What a unit says under [Service]. A name that is given twice is given wrongly."""
    parser = RawConfigParser()
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    [path] = [path for path in UNITS if path.stem == name]
    parser.read(path)
    return dict(parser["Service"])


def test_engines_outlive_a_restart_of_the_agent_and_one_that_runs_out_of_memory() -> None:
    agent = service("llmgw-agent")
    assert agent["KillMode"] == "process", "else systemd ends the engines with the agent"
    assert agent["OOMPolicy"] == "continue", "else the end of one engine ends the agent"
    assert agent["Restart"] == "on-failure", "one that was drained stays down"
    assert "--stop-engines" not in agent["ExecStart"]
    assert agent["LimitMEMLOCK"] == "infinity"


def test_the_data_of_each_unit_is_where_systemd_makes_its_folder() -> None:
    for unit in UNITS:
        found = service(unit.stem)
        assert found["Environment"] == f"LLMGW_DATA=/var/lib/{found['StateDirectory']}"


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze")
    done = subprocess.run([program, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
