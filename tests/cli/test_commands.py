"""The commands that need no log, run as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw import __version__
from llmgw.cli.main import run
from tests.cli.conftest import Program, arguments, environment

CAPTURE = """\
<?xml version="1.0" ?>
<nvidia_smi_log>
  <driver_version>550.54</driver_version>
  <cuda_version>12.4</cuda_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:01:00.0">
    <product_name>NVIDIA L40S</product_name>
    <uuid>GPU-1</uuid>
    <minor_number>0</minor_number>
    <mig_mode><current_mig>N/A</current_mig><pending_mig>N/A</pending_mig></mig_mode>
    <fb_memory_usage>
      <total>46068 MiB</total><used>0 MiB</used><free>45403 MiB</free>
    </fb_memory_usage>
    <temperature><gpu_temp>31 C</gpu_temp></temperature>
    <pci><pci_bus_id>00000000:01:00.0</pci_bus_id></pci>
    <processes></processes>
  </gpu>
</nvidia_smi_log>
"""


@pytest.fixture
def capture(tmp_path: Path) -> str:
    folder = tmp_path / "capture"
    folder.mkdir()
    (folder / "nvidia-smi-q-x.xml").write_text(CAPTURE)
    (folder / "nvidia-smi-L.txt").write_text("GPU 0: NVIDIA L40S (UUID: GPU-1)\n")
    return "capture"


def test_the_version_is_printed(llmgw: Program) -> None:
    assert llmgw("version").out == f"{__version__}\n"


def test_help_names_every_group(llmgw: Program) -> None:
    out = llmgw("--help").out
    for name in ("up", "agent", "controller", "ctl", "catalog", "schemas", "config", "version"):
        assert f"\n  {name} " in out


def test_help_loads_nothing_that_only_commands_need() -> None:
    heavy = "{'msgspec', 'structlog', 'yaml', 'nats', 'rich', 'httpx', 'asyncio'}"
    code = (
        "import sys; sys.argv = ['llmgw', '--help']\n"
        "from llmgw.cli.main import app\n"
        "try: app()\n"
        f"except SystemExit: print(sorted({heavy} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr.decode().strip() == "[]"


@pytest.mark.parametrize(
    "words",
    [
        ("bogus",),
        ("ctl", "bogus"),
        ("ctl", "nodes", "--bogus"),
        ("ctl", "nodes", "-o", "xml"),
        ("ctl", "apply"),
        ("ctl", "events", "--limit", "0"),
        ("ctl", "events", "--follow", "--rejected"),
        ("agent", "bogus"),
        ("agent", "--bogus"),
        ("agent", "inventory", "--backend", "abacus"),
        ("agent", "inventory", "--from", "nowhere"),
        ("agent", "inventory", "--from", "nowhere", "--capture", "somewhere"),
        ("ctl", "nodes", "--cluster", "a.b"),
        ("ctl", "nodes", "--nats-url", "http://x"),
        ("up", "--listen", "nonsense"),
        ("up", "--copies", "2"),
        ("up", "--simulate", ","),
        ("agent", "fleet", "--from", ""),
        ("config", "show", "--config", "missing.toml"),
    ],
)
def test_wrong_usage_ends_with_two_and_says_why(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["llmgw", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.strip()


@pytest.mark.parametrize("words", [("version",), ("config", "show"), ("catalog", "check", "c")])
def test_output_that_cannot_be_written_is_said_in_words(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "c").write_text("models: [1]")
    program = [sys.executable, "-c", "from llmgw.cli.main import run; run()", *words]
    for closed, said in ((False, "No space left on device"), (True, "standard output is closed")):
        with Path("/dev/full").open("w") as full:
            shell = ["sh", "-c", 'exec "$@" >&-' if closed else 'exec "$@"', "sh", *program]
            done = subprocess.run(
                shell, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert (done.returncode, done.stderr) == (1, f"the output cannot be written: {said}\n")


def test_who_is_tired_of_waiting_for_imports_reads_no_traceback(tmp_path: Path) -> None:
    """A library that takes for ever to import, and Ctrl-C meanwhile."""
    for name in ("importing", "never"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "typer.py").write_text("open('importing', 'w').close()\nopen('never').close()\n")
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    process = subprocess.Popen(
        arguments("ctl", "status"),
        cwd=tmp_path,
        env={**environment(tmp_path), "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    (tmp_path / "importing").read_text()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (-signal.SIGINT, "")


def test_up_reads_the_catalog_before_it_starts_anything(llmgw: Program, tmp_path: Path) -> None:
    done = llmgw("up", "--catalog", "missing.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("missing.yaml:1: file: cannot be read")
    assert not (tmp_path / "data").exists()


def test_a_wrong_setting_names_where_it_came_from(llmgw: Program) -> None:
    done = llmgw("ctl", "nodes", LLMGW_CLUSTER="a b")
    assert done.code == 2
    assert "cluster (from LLMGW_CLUSTER) is 'a b'" in done.err


class TestInventory:
    def test_json_is_as_the_contract_says(self, llmgw: Program, capture: str) -> None:
        done = llmgw("agent", "inventory", "--from", capture, "--node", "gpu-07", "-o", "json")
        found = json.loads(done.out)
        assert done.code == 0
        assert (found["node"], found["driver_version"]) == ("gpu-07", "550.54")
        (card,), (device,) = found["cards"], found["devices"]
        assert (card["index"], card["class"], card["temperature_celsius"]) == (0, "l40s-48g", 31)
        assert (device["id"], device["label"], device["memory_used_bytes"]) == (0, "0", 0)
        assert (found["excluded"], found["warnings"]) == ([], [])

    def test_the_table_is_for_people(self, llmgw: Program, capture: str) -> None:
        done = llmgw("agent", "inventory", "--from", capture, "--node", "gpu-07")
        first, _, header, card, *_ = done.out.splitlines()
        assert first == "gpu-07: read by nvidia-smi, driver 550.54"
        assert header.split()[:4] == ["CARD", "NAME", "CLASS", "MEMORY"]
        assert card.split()[:4] == ["0", "NVIDIA", "L40S", "l40s-48g"]

    def test_the_processor_alone_is_an_inventory(self, llmgw: Program) -> None:
        found = json.loads(llmgw("agent", "inventory", "--backend", "cpu", "-o", "json").out)
        assert found["cards"] == []
        assert [device["class"] for device in found["devices"]] == ["cpu"]

    def test_a_missing_tool_is_no_empty_machine(self, llmgw: Program) -> None:
        done = llmgw("agent", "inventory", "-o", "json", LLMGW_NVIDIA_SMI="no-such-program")
        assert (done.code, done.out) == (1, "")
        assert "no-such-program" in done.err


class TestCatalogCheck:
    def test_every_mistake_has_its_line(self, llmgw: Program, tmp_path: Path) -> None:
        (tmp_path / "bad.yaml").write_text("models:\n  - name: A\n    engine: nonsense\n")
        done = llmgw("catalog", "check", "bad.yaml")
        assert done.code == 2
        places = [line.split(": ")[0:2] for line in done.out.splitlines()]
        assert places == [
            ["bad.yaml:2", "name"],
            ["bad.yaml:2", "class"],
            ["bad.yaml:2", "memory"],
            ["bad.yaml:3", "engine"],
        ]

    def test_a_file_that_is_not_there_is_a_mistake_too(self, llmgw: Program) -> None:
        done = llmgw("catalog", "check", "missing.yaml")
        assert done.code == 2
        assert done.out.startswith("missing.yaml:1: file: cannot be read")

    def test_a_good_catalog_is_said_to_be_good(self, llmgw: Program, tmp_path: Path) -> None:
        (tmp_path / "good.yaml").write_text(
            "models:\n  - {name: a, engine: vllm, class: cpu, memory: 1GiB, source: org/a}\n"
        )
        done = llmgw("catalog", "check", "good.yaml")
        assert (done.code, done.out) == (0, "")
        assert done.err.splitlines()[-1] == "good.yaml: 1 model, no mistakes"


class TestConfig:
    def test_each_value_comes_with_its_origin(self, llmgw: Program, tmp_path: Path) -> None:
        (tmp_path / "llmgw.toml").write_text('cluster = "lab"\n')
        done = llmgw(
            "config", "show", "-o", "json", LLMGW_NATS_URL="nats://me:secret@127.0.0.1:4222"
        )
        rows = {row["name"]: row for row in json.loads(done.out)}
        assert rows["cluster"] == {"name": "cluster", "value": "lab", "origin": "llmgw.toml"}
        assert rows["nats_url"]["origin"] == "LLMGW_NATS_URL"
        assert "secret" not in done.out
        assert "value" not in rows["vllm"]

    def test_a_misspelt_variable_is_pointed_out(self, llmgw: Program) -> None:
        done = llmgw("config", "show", LLMGW_NATS_URI="x")
        assert done.code == 0
        assert "did you mean LLMGW_NATS_URL?" in done.err


@pytest.mark.parametrize("words", [("agent", "--help"), ("controller", "--help")])
def test_help_of_a_group_that_runs_by_default_is_still_help(
    llmgw: Program, words: tuple[str, ...]
) -> None:
    done = llmgw(*words)
    assert done.code == 0
    assert "\n  run " in done.out
