"""Whatever the tool prints, discovery finds a machine or says that it is unavailable."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable
from llmgw.hardware.shapes import readings, shape
from llmgw.hardware.smi_list import parse_listing
from llmgw.hardware.smi_xml import parse_report
from llmgw.testing.fake_smi import FakeMachine, FakeProcess, render_listing, render_report

from .support import A100, DRIVERS, L40S, SLICE, read

MACHINES = tuple(
    FakeMachine(
        (
            replace(L40S, processes=(FakeProcess(pid=5, memory_mib=1),), remapped_rows=0),
            replace(A100, mig="Enabled", instances=(SLICE, replace(SLICE, gpu_instance=8))),
            replace(L40S, lost=True),
        ),
        driver=driver,
    )
    for driver in DRIVERS[1:]
)

NOISE = st.sampled_from(
    (
        *(
            "",
            "N/A",
            "GPU is lost",
            "-1",
            "9" * 30,
            "9" * 6000,
            "\x00",
            "]]>",
            "<!--",
            "&#0;",
            "&x;",
        ),
        *("1e309", "nan", "</gpu>", "<gpu>", "<uuid>", "0x10", "١٢", "4294967295", "\ud800"),
        *("<![CDATA[", "<?xml?>", "</nvidia_smi_log>", "<nvidia_smi_log>", "\u2028", " " * 100),
    )
)


def attempt(machine: FakeMachine, report: str, listing: str) -> None:
    with contextlib.suppress(BackendUnavailable):
        inventory = read(machine, report=report, listing=listing)
        shape(inventory)
        readings(inventory)
        assert inventory.cards or "<gpu" not in report
        assert len({device.id for device in inventory.devices}) == len(inventory.devices)


@given(st.sampled_from(MACHINES), st.randoms(use_true_random=False), st.lists(NOISE, max_size=8))
def test_a_mutated_report_never_breaks_discovery(
    machine: FakeMachine, chance: random.Random, noise: list[str]
) -> None:
    report = render_report(machine)
    for text in noise:
        at = chance.randrange(len(report) + 1)
        to = min(len(report), at + chance.choice((0, 0, 1, 10, 200, 5000)))
        report = report[:at] + text + report[to:]
    attempt(machine, report, render_listing(machine))


@given(st.sampled_from(MACHINES), st.randoms(use_true_random=False), st.lists(NOISE, max_size=8))
def test_a_mutated_value_never_breaks_discovery(
    machine: FakeMachine, chance: random.Random, noise: list[str]
) -> None:
    pieces = render_report(machine).split("</")
    for text in noise:
        at = chance.randrange(len(pieces))
        pieces[at] = pieces[at].rpartition(">")[0] + ">" + text
    attempt(machine, "</".join(pieces), render_listing(machine))


@given(st.sampled_from(MACHINES), st.randoms(use_true_random=False), st.lists(NOISE, max_size=8))
def test_a_mutated_listing_never_breaks_discovery(
    machine: FakeMachine, chance: random.Random, noise: list[str]
) -> None:
    listing = render_listing(machine)
    for text in noise:
        at = chance.randrange(len(listing) + 1)
        listing = listing[:at] + text + listing[at + chance.choice((0, 1, 30)) :]
    attempt(machine, render_report(machine), listing)


@given(st.text())
@example("GPU 0: x (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-1)\n")
def test_any_text_is_a_listing_or_none(text: str) -> None:
    parse_listing(text)


@given(st.text())
def test_any_text_is_a_report_or_unavailable(text: str) -> None:
    for report in (text, f"<nvidia_smi_log>{text}</nvidia_smi_log>"):
        with contextlib.suppress(BackendUnavailable):
            parse_report(report)


def test_entities_are_never_expanded() -> None:
    bomb = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 30))
    report = (
        f'<!DOCTYPE nvidia_smi_log [<!ENTITY a0 "x">{bomb}]>'
        "<nvidia_smi_log><gpu><uuid>&a29;</uuid></gpu></nvidia_smi_log>"
    )
    harmless = '<!DOCTYPE x [<!ENTITY a "b">]><nvidia_smi_log>&a;</nvidia_smi_log>'
    inside = "<nvidia_smi_log><!ENTITY a 'b'></nvidia_smi_log>"
    for document in (report, harmless, inside):
        with pytest.raises(BackendUnavailable):
            parse_report(document)


def test_a_report_nested_without_end_is_no_crash() -> None:
    deep = "<gpu>" * 100_000 + "</gpu>" * 100_000
    with contextlib.suppress(BackendUnavailable):
        parse_report(f"<nvidia_smi_log>{deep}</nvidia_smi_log>")
