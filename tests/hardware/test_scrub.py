"""What a capture must not hold: markers of each kind, wherever a driver may print them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from anyio import to_thread
from msgspec.structs import replace

from llmgw.hardware.captures import RECORD_FILE, REPORT_FILE, SCRUBBED_FILE, Capture
from llmgw.hardware.discover import HardwareSettings, capture, discover
from llmgw.hardware.host import owners
from llmgw.hardware.nvml_record import Answer, CardRecord, InstanceRecord, Record, Refusal
from llmgw.hardware.scrub import Scrubber
from llmgw.testing.fake_nvml import write_fake_nvml
from llmgw.testing.fake_smi import FakeAnswer, answers_for, render_report, write_fake_smi
from llmgw.testing.machines import FakeMachine, FakeProcess

from .described import MACHINES, STATES
from .support import A100, L40S, SLICE, needs_nvml, read

HOST, USER = "gpu-07.cluster.example.org", "ann.other"


@pytest.fixture
def scrubber() -> Scrubber:
    return Scrubber([HOST, "gpu-07"], [USER, "pro", "sys", "root"])


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("<serial>13201</serial>", "<serial>removed</serial>", "serial numbers"),
        ("<serial>13201", "<serial>removed", "serial numbers"),
        (
            "<chassis_serial_number>7</chassis_serial_number>",
            "<chassis_serial_number>removed</chassis_serial_number>",
            "serial numbers",
        ),
        ("<pdi>0xb1</pdi>", "<pdi>removed</pdi>", "device identifiers"),
        ("<ib_guid>0xb1</ib_guid>", "<ib_guid>removed</ib_guid>", "device identifiers"),
        ("<vm_uuid>1-2</vm_uuid>", "<vm_uuid>removed</vm_uuid>", "names of virtual machines"),
        (
            "<process_name>a\nb</process_name>\n<used_memory>",
            "<process_name>removed</process_name>\n<used_memory>",
            "process names and command lines",
        ),
        (
            "<process_name>a</process_name> --key=b <i></process_name><used_memory>5 MiB",
            "<process_name>removed</process_name><used_memory>5 MiB",
            "process names and command lines",
        ),
        (
            "<process_name>cut in the mid",
            "<process_name>removed",
            "process names and command lines",
        ),
        ("<note>on gpu-07</note>", "<note>on removed</note>", "host names"),
        (f"<note>{HOST}:1</note>", "<note>removed:1</note>", "host names"),
        (f"<note>by {USER}</note>", "<note>by removed</note>", "user names"),
        ("<note>/home/bob/x</note>", "<note>/home/removed/x</note>", "folders of users"),
        ("<note>at 10.1.2.3</note>", "<note>at removed</note>", "network addresses"),
        ("<note>at 10.1.2.3.</note>", "<note>at removed.</note>", "network addresses"),
        ("<note>fe80::1</note>", "<note>removed</note>", "network addresses"),
        ("<note>00:16:3e:0a:0b:0c</note>", "<note>removed</note>", "network addresses"),
    ],
)
def test_each_kind_is_taken_out_and_counted(
    before: str, after: str, kind: str, scrubber: Scrubber
) -> None:
    assert scrubber.report(before) == after
    assert scrubber.removed == {kind: 1}


@pytest.mark.parametrize(
    "kept",
    [
        "<serial>N/A</serial>",
        "<uuid>GPU-1</uuid>",
        '<gpu id="00000000:07:00.0">',
        "<gpu_bus_id>00000000:07:00.0</gpu_bus_id>",
        "<vbios_version>92.00.45.00.06</vbios_version>",
        "<driver_version>535.54.03</driver_version>",
        "<img_version>G133.0210.00.04</img_version>",
        "<product_name>NVIDIA RTX pro 6000</product_name>",
        "<gpu-07>the name of a field</gpu-07>",
        "<timestamp>Thu Jan  1 12:30:45 2026</timestamp>",
        "<addressing_mode>HMM</addressing_mode>",
    ],
)
def test_what_the_outputs_are_joined_by_stays(kept: str, scrubber: Scrubber) -> None:
    assert scrubber.report(kept) == kept
    assert not scrubber.removed


def test_names_that_the_driver_uses_itself_are_left_alone() -> None:
    scrubber = Scrubber(["gpu", "nv"], ["root"])
    text = "GPU gpu nv1 root"
    assert scrubber.text(text) == text


@pytest.mark.parametrize("name", [*MACHINES, *STATES])
def test_a_scrubbed_report_is_read_as_the_one_before_it(name: str, scrubber: Scrubber) -> None:
    machine = (MACHINES | STATES)[name]
    report = render_report(machine)
    if "<gpu " in report:
        assert read(machine, report=scrubber.report(report)) == read(machine, report=report)


def test_a_record_loses_what_is_private_in_every_place(scrubber: Scrubber) -> None:
    private = {"names": Answer(value=[f"at {HOST}", {"inner": "10.0.0.1"}], said=f"{USER} may not")}
    named = {"nvmlSystemGetProcessName(5)": Answer(value="vllm --api-key=abc")}
    record = Record(
        system=private | named,
        cards=(CardRecord(0, private, (InstanceRecord(1, private),)),),
        pairs=private,
        failure=Refusal("library", said=f"/home/{USER}/lib: {HOST}"),
    )
    text = str(scrubber.record(record))
    for marker in (HOST, USER, "10.0.0.1", "abc"):
        assert marker not in text
    assert scrubber.removed["host names"] == 5
    assert scrubber.removed["process names and command lines"] == 1
    product = {"nvmlDeviceGetName": Answer(value="RTX pro 6000"), "count": Answer(value=3)}
    kept = Record(cards=(CardRecord(0, product),))
    assert scrubber.record(kept) == kept


def test_whose_machine_it_is_is_read_off_the_machine(tmp_path: Path) -> None:
    for name, text in {
        "proc/sys/kernel/hostname": f"{HOST}\n",
        "etc/passwd": f"root:x:0:0::/root:\n{USER}:x:1001:1001::/home/x:\nnobody:x:65534:0::/:\n",
        "home/bob/.profile": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    hosts, users = owners(tmp_path)
    assert hosts == ["cluster.example.org", "gpu-07", HOST]
    assert users == [USER, "bob"]
    assert owners(tmp_path / "nowhere") == ([], [])


MARKERS = {
    "process names and command lines": "python3 serve.py --api-key=private-key",
    "serial numbers": "private-serial",
    "host names": "private-host",
    "network addresses": "10.77.1.2",
    "folders of users": "/home/private-user/job",
}


def machine() -> FakeMachine:
    job = FakeProcess(pid=11, memory_mib=5, name=MARKERS["process names and command lines"])
    part = replace(job, gpu_instance=SLICE.gpu_instance, compute_instance=0)
    carved = replace(A100, mig="Enabled", instances=(SLICE,), processes=(part,))
    return FakeMachine((replace(L40S, processes=(job,)), carved), links=())


async def captured(folder: Path, **found: str) -> tuple[Capture, str]:
    settings = HardwareSettings(node="n1", **found)  # type: ignore[arg-type]
    made = await capture(settings, folder / "capture")
    return made, "".join(path.read_text() for path in made.files if path.name != SCRUBBED_FILE)


async def test_nothing_private_of_what_the_tool_prints_survives(tmp_path: Path) -> None:
    answers = answers_for(machine())
    report = answers["-q -x"].text
    planted = f"<note>{MARKERS['folders of users']} at {MARKERS['network addresses']}</note>"
    report = report.replace("</gpu>", f"{planted}<serial>private-serial</serial></gpu>")
    warned = f"a message about {MARKERS['folders of users']} at {MARKERS['network addresses']}\n"
    program = await to_thread.run_sync(
        write_fake_smi,
        tmp_path / "nvidia-smi",
        {
            **answers,
            "-q -x": replace(answers["-q -x"], text=report + warned),
            "topo -m": FakeAnswer(warned, code=255),
        },
    )
    made, text = await captured(tmp_path, nvidia_smi=str(program), nvml_library="none.so")
    assert "private" not in text
    assert MARKERS["network addresses"] not in text
    assert made.removed["process names and command lines"] == 2
    assert made.removed["serial numbers"] >= 2
    assert made.removed["folders of users"] == 4
    assert "2 process names and command lines" in made.said()
    said = (tmp_path / "capture" / SCRUBBED_FILE).read_text()
    assert said == f"{made.said()}\n"
    source = HardwareSettings(node="n1", backend="nvidia-smi", capture_from=tmp_path / "capture")
    assert [d.label for d in (await discover(source)).devices] == ["0", "1/mig0"]


@needs_nvml
async def test_nothing_private_of_what_nvml_answers_survives(tmp_path: Path) -> None:
    library = await to_thread.run_sync(write_fake_nvml, tmp_path, machine())
    made, text = await captured(tmp_path, nvidia_smi="none", nvml_library=str(library))
    assert "private" not in text
    assert {path.name for path in made.files} >= {RECORD_FILE, SCRUBBED_FILE}
    asked = set(json.loads((tmp_path / "capture" / RECORD_FILE).read_text())["cards"][0]["calls"])
    assert not [name for name in asked if "Serial" in name or "ProcessName" in name]
    source = HardwareSettings(node="n1", backend="nvml", capture_from=tmp_path / "capture")
    assert [d.label for d in (await discover(source)).devices] == ["0", "1/mig0"]
    assert not (tmp_path / "capture" / REPORT_FILE).exists()
