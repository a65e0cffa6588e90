"""`llmgw doctor` as a user runs it: on machines that are described, on captures, and on none."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.log.embedded import server_program
from llmgw.log.storefolder import StoreFolder
from llmgw.log.tether import tethered
from llmgw.testing.fake_nvml import write_fake_nvml
from llmgw.testing.fake_smi import FakeAnswer, answers_for, write_fake_smi
from llmgw.testing.machines import FakeCard, FakeInstance, FakeMachine
from tests.cli.conftest import Ctl, Done, Program
from tests.hardware.support import A100, L40S, needs_nvml
from tests.support.wait import until_sync

EMPTY = replace(A100, mig="Enabled")
PART = FakeInstance(profile="3g.40gb", memory_total_mib=40192, gpu_instance=1, multiprocessors=42)
CARVED = replace(A100, mig="Enabled", instances=(PART,))
NOTHING = {"LLMGW_NVIDIA_SMI": "no-such-program", "LLMGW_NVML_LIBRARY": "no-such-library.so"}

Rows = Mapping[str, Mapping[str, Any]]
Doctor = Callable[..., tuple[int, Rows]]


def rows(done: Done) -> Rows:
    return {row["check"]: row for row in json.loads(done.out)}


@pytest.fixture
def doctor(llmgw: Program, tmp_path: Path) -> Doctor:
    """Run doctor where nothing of this machine's cards is seen, and return its code and rows."""

    def run(*words: str, **variables: str) -> tuple[int, Rows]:
        done = llmgw("doctor", *words, "-o", "json", **(NOTHING | variables))
        return done.code, rows(done)

    return run


def smi(folder: Path, machine: FakeMachine | dict[str, FakeAnswer]) -> dict[str, str]:
    program = write_fake_smi(folder / "nvidia-smi", machine)
    return {"LLMGW_NVIDIA_SMI": str(program), "LLMGW_BACKEND": "nvidia-smi"}


def no_card_on_the_bus() -> bool:
    from llmgw.doctor.host import cards_on_the_bus

    return cards_on_the_bus() == 0


@pytest.mark.skipif(not no_card_on_the_bus(), reason="this machine has a card")
def test_a_machine_without_a_gpu_is_told_so_plainly_and_is_no_fault(doctor: Doctor) -> None:
    code, found = doctor()
    assert code == 0
    assert found["hardware"]["state"] == "warning"
    assert "LLMGW_CPU_DEVICE=true" in found["hardware"]["do"]
    code, found = doctor(LLMGW_CPU_DEVICE="true")
    assert (code, found["hardware"]["state"], found["versions"]["state"]) == (0, "ok", "ok")
    assert {"engine vllm", "engine llama.cpp", "NATS", "data folder", "ports"} <= set(found)
    assert {"open files", "locked memory", "shared memory"} <= set(found)


def test_a_state_in_which_nothing_runs_ends_with_four_and_says_what_to_do(
    doctor: Doctor, tmp_path: Path
) -> None:
    pending = replace(A100, mig_pending="Enabled")
    prohibited = replace(L40S, compute_mode="Prohibited")
    machine = FakeMachine((EMPTY, L40S, pending, prohibited, replace(L40S, lost=True)))
    code, found = doctor(**smi(tmp_path, machine))
    assert code == 4
    states = [found[f"card {n}"]["state"] for n in range(5)]
    assert states == ["fault", "ok", "fault", "fault", "fault"]
    assert found["card 0"]["do"].startswith("nvidia-smi mig -i 0 -cgi 3g.40gb,3g.40gb -C")
    assert "nvidia-smi --gpu-reset -i 2" in found["card 2"]["do"]
    assert found["card 3"]["do"] == "nvidia-smi -i 3 -c DEFAULT"
    assert "79" in found["card 4"]["do"]
    assert found["GPU instances of card 0"]["state"] == "unknown"


def test_a_tool_of_another_version_than_the_driver_is_a_fault(
    doctor: Doctor, tmp_path: Path
) -> None:
    machine = FakeMachine((L40S,), driver="535.54.03")
    answers = answers_for(machine)
    said = "NVIDIA-SMI version  : 570.124.06\nNVML version        : 570.124\n"
    code, found = doctor(**smi(tmp_path, {**answers, "--version": FakeAnswer(said)}))
    assert (code, found["versions"]["state"]) == (4, "fault")
    assert "nvidia-smi 570.124.06" in found["versions"]["detail"]


@pytest.mark.parametrize(
    ("said", "exit_code", "remedy"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18, "reboot"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, "mod"),
    ],
)
def test_a_driver_that_fails_is_a_fault_with_its_remedy(
    doctor: Doctor, tmp_path: Path, said: str, exit_code: int, remedy: str
) -> None:
    answer = FakeAnswer(said, code=exit_code)
    code, found = doctor(**smi(tmp_path, dict.fromkeys(("-L", "-q -x", "topo -m"), answer)))
    assert (code, found["hardware"]["state"]) == (4, "fault")
    assert remedy in found["hardware"]["do"]
    assert found["data folder"]["state"] == "ok"


@needs_nvml
def test_root_sees_gpu_instances_that_nothing_can_use_and_others_are_told_so(
    doctor: Doctor, tmp_path: Path
) -> None:
    machine = FakeMachine((replace(CARVED, bare_gpu_instances=(2,)),))
    check = "GPU instances of card 0"

    def look(*, root: bool) -> Mapping[str, Any]:
        library = write_fake_nvml(tmp_path, machine, root=root)
        _, found = doctor(LLMGW_NVML_LIBRARY=str(library))
        assert found["hardware"]["detail"] == "read by nvml, 1 card"
        assert "0/mig0 3g.40gb" in found["card 0"]["detail"]
        assert "discovery" not in found
        return found[check]

    assert look(root=False)["state"] == "unknown"
    assert look(root=True)["do"] == "nvidia-smi mig -i 0 -gi 2 -cci"


@needs_nvml
def test_a_fallback_is_a_warning_that_says_why(doctor: Doctor, tmp_path: Path) -> None:
    machine = FakeMachine((L40S, L40S), links=((0, 1),))
    variables = smi(tmp_path, machine) | {"LLMGW_BACKEND": "auto"}
    _, found = doctor(**variables)
    assert found["hardware"]["state"] == "warning"
    assert "instead of nvml: no-such-library.so not found" in found["hardware"]["detail"]
    assert found["NVLink"]["detail"].endswith("/0: cards 0, 1")


def test_a_capture_tells_of_hardware_alone(llmgw: Program, tmp_path: Path) -> None:
    card = FakeCard(name="Tesla T4", memory_total_mib=15360, architecture="Turing")
    program = write_fake_smi(tmp_path / "nvidia-smi", FakeMachine((EMPTY, card)))
    variables = NOTHING | {"LLMGW_NVIDIA_SMI": str(program)}
    made = llmgw("agent", "inventory", "--capture", "there", **variables)
    assert (made.code, "taken out: " in made.err, "serial numbers" in made.err) == (0, True, True)
    done = llmgw("doctor", "--from", "there", "-o", "json")
    found = rows(done)
    assert done.code == 4
    assert (found["card 0"]["state"], found["card 1"]["state"]) == ("fault", "ok")
    assert not {"NATS", "ports", "data folder", "engine vllm"} & set(found)
    assert "1 fault" in done.err
    table = llmgw("doctor", "--from", "there").out.splitlines()
    assert table[0].split() == ["STATE", "CHECK", "DETAIL"]
    assert any(line.strip().startswith("do: nvidia-smi mig -i 0 -cgi") for line in table)


def test_a_folder_that_is_no_capture_is_wrong_usage(llmgw: Program) -> None:
    done = llmgw("doctor", "--from", "nowhere")
    assert (done.code, done.out) == (2, "")
    assert "there is no folder nowhere" in done.err


def test_the_log_is_looked_at_and_nothing_is_made_on_it(doctor: Doctor, ctl: Ctl) -> None:
    unmade = ctl.variables | {"LLMGW_CLUSTER": "unmade"}
    for _ in range(2):
        _, found = doctor(**unmade)
        assert found["NATS"]["state"] == "ok"
        assert "not there yet" in found["JetStream"]["detail"]
        assert found["clock"]["state"] == "unknown"
    _, found = doctor(**ctl.variables)
    assert "as llmgw needs them" in found["JetStream"]["detail"]
    assert found["clock"]["state"] == "ok"


def test_a_server_that_is_away_or_has_no_jetstream_is_a_fault(
    doctor: Doctor, tmp_path: Path
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"nats://me:secret@127.0.0.1:{closed.getsockname()[1]}"
        code, found = doctor(LLMGW_NATS_URL=url)
    assert (code, found["NATS"]["state"]) == (4, "fault")
    assert "secret" not in str(found)

    command = tethered([server_program(), "-a", "127.0.0.1", "-p", "-1"])
    process = subprocess.Popen(
        [*command, "--ports_file_dir", str(tmp_path)], stderr=subprocess.DEVNULL
    )
    try:
        port = until_sync(lambda: StoreFolder(tmp_path).read_port(process.pid), what="it listens")
        code, found = doctor(LLMGW_NATS_URL=f"nats://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()
    assert (code, found["JetStream"]["state"]) == (4, "fault")
    assert "-js" in found["JetStream"]["do"]


def test_what_cannot_be_used_on_this_machine_is_a_fault(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, found = doctor(
            LLMGW_DATA=str(tmp_path / "file"),
            LLMGW_PORT_RANGE=f"{port}-{port}",
            LLMGW_VLLM="no-such-vllm",
        )
    assert code == 4
    for check in ("data folder", "ports", "engine vllm"):
        assert found[check]["state"] == "fault"
        assert found[check]["do"]


def test_versions_of_engines_are_read_beside_their_programs(doctor: Doctor, tmp_path: Path) -> None:
    program = tmp_path / "env" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nraise SystemExit('never run')\n")
    program.chmod(0o755)
    (tmp_path / "env/lib/python3.12/site-packages/vllm-0.20.1.dist-info").mkdir(parents=True)
    _, found = doctor(LLMGW_VLLM=str(program))
    assert found["engine vllm"]["detail"] == f"{program}, version 0.20.1"


def vllm_by(folder: Path, *lines: str) -> Path:
    """Write a vllm that is run by an interpreter which, asked about PyTorch, does this."""
    interpreter = folder / "env" / "bin" / "python3"
    interpreter.parent.mkdir(parents=True, exist_ok=True)
    interpreter.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    program = interpreter.with_name("vllm")
    program.write_text(f"#!{interpreter}\nraise SystemExit('never run')\n")
    for path in (interpreter, program):
        path.chmod(0o755)
    return program


def test_an_engine_is_asked_through_its_own_python_whether_it_sees_the_cards(
    doctor: Doctor, tmp_path: Path
) -> None:
    cards = smi(tmp_path, FakeMachine((L40S,)))

    def look(*lines: str) -> Mapping[str, Any]:
        _, found = doctor(LLMGW_VLLM=str(vllm_by(tmp_path, *lines)), **cards)
        return found["engine vllm"]

    assert look("echo a warning", """echo 'SIGHT {"count": 1, "cuda": "12.4"}'""")["state"] == "ok"
    blind = look("""echo 'SIGHT {"count": 0, "cuda": "99.0"}'""")
    assert (blind["state"], blind["do"]) == (
        "warning",
        "update the driver, or install an older build",
    )
    broken = look('echo "ImportError: libcudart.so.12: cannot open" >&2', "exit 1")
    assert "libcudart.so.12" in broken["detail"]


def test_what_dead_programs_left_in_shared_memory_is_named(tmp_path: Path) -> None:
    from asyncio import run

    from llmgw.doctor.host import locked_memory, shared_memory

    memory, processes = tmp_path / "dev/shm", tmp_path / "proc"
    memory.mkdir(parents=True)
    for name in ("psm_dead", "psm_used", "other"):
        (memory / name).write_bytes(bytes(2**20))
    (processes / "1").mkdir(parents=True)
    (processes / "2").mkdir()
    (processes / "1" / "maps").write_text("7f00-7f10 rw-s 0 00:19 2 /dev/shm/psm_used\n")
    (processes / "self").mkdir()
    [found] = run(shared_memory(tmp_path))
    assert (found.state, found.do) == ("warning", "rm /dev/shm/psm_dead")
    assert "1 files (1 MiB)" in found.detail
    [found] = run(shared_memory(tmp_path / "nowhere"))
    assert found.state == "unknown"
    [found] = run(locked_memory(tmp_path))
    assert found.state == "ok"
