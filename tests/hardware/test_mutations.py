"""Whatever the tool prints, discovery finds a machine or says that it is unavailable."""

from __future__ import annotations

import contextlib
import random

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable
from llmgw.hardware.assemble import assemble
from llmgw.hardware.classes import parse_profile
from llmgw.hardware.shapes import readings, shape
from llmgw.hardware.smi_list import parse_listing
from llmgw.hardware.smi_xml import parse_report
from llmgw.hardware.topology import parse_topology
from llmgw.hardware.types import MIG_DEVICE_BASE, Inventory
from llmgw.testing.fake_smi import (
    FakeMachine,
    FakeProcess,
    render_listing,
    render_report,
    render_topology,
)
from llmgw.views.carving import carving_findings
from llmgw.views.findings import HardwareFacts, hardware_findings

from .support import A100, DRIVERS, L40S, SLICE, edited, read

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

UNUSABLE = ("lost", "unreadable", "mig-empty", "no-permission")

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
        inventory = read(machine, report=printed(report), listing=printed(listing))
        assert inventory.cards or "<gpu" not in report
        assert_sound(inventory)


def printed(text: str) -> str:
    """The text as it comes from a program: bytes, of which those that are no text are replaced."""
    return text.encode("utf-8", "replace").decode("utf-8", "replace")


def assert_sound(inventory: Inventory) -> None:
    """Fail where an inventory could mislead placement, whatever it was read from."""
    shape(inventory)
    readings(inventory)
    [*hardware_findings(inventory, HardwareFacts()), *carving_findings(inventory)]
    assert msgspec.json.decode(msgspec.json.encode(inventory), type=Inventory) == inventory
    cards = {card.index: card for card in inventory.cards}
    out = {one.card: one.reason for one in inventory.excluded if one.device is None}
    devices_out = {one.device for one in inventory.excluded}
    assert len(cards) == len(inventory.cards)
    for of_all in ([d.id for d in inventory.devices], [d.uuid for d in inventory.devices]):
        assert len(set(of_all)) == len(of_all), "one device would be sold twice"
    for device in inventory.devices:
        assert device.card is not None
        card = cards[device.card]
        assert device.id not in devices_out
        assert out.get(card.index) not in UNUSABLE
        assert (device.id >= MIG_DEVICE_BASE) == (card.mig_mode == "enabled")
        assert device.memory_total_bytes or device.unified or card.index in out
        parts = (device.memory_used_bytes, device.memory_free_bytes, device.memory_reserved_bytes)
        total = device.memory_total_bytes
        assert total is None or all(part is None or part <= total for part in parts)
        assert device.profile is None or parse_profile(device.profile) is not None
    for card in inventory.cards:
        assert card.index not in (card.nvlink_peers or ())
        assert set(card.nvlink_peers or ()) <= set(cards)


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


@given(st.sampled_from(MACHINES), st.randoms(use_true_random=False), st.lists(NOISE, max_size=8))
def test_a_mutated_topology_never_breaks_discovery(
    machine: FakeMachine, chance: random.Random, noise: list[str]
) -> None:
    machine = replace(machine, links=((0, 2),))
    text = render_topology(machine)
    for one in noise:
        at = chance.randrange(len(text) + 1)
        text = text[:at] + one + text[at + chance.choice((0, 1, 30)) :]
    found = assemble(
        "n1",
        parse_report(render_report(machine)),
        parse_listing(render_listing(machine)),
        topology=parse_topology(printed(text)),
    )
    assert_sound(found)


@given(st.sampled_from(MACHINES), st.integers(min_value=0))
def test_a_report_that_was_cut_short_is_unavailable_and_says_so(
    machine: FakeMachine, place: int
) -> None:
    report = render_report(machine).rstrip()
    with pytest.raises(BackendUnavailable):
        read(machine, report=report[: place % len(report)])


@given(st.sampled_from(MACHINES), st.integers(min_value=0))
def test_of_a_listing_that_was_cut_short_nothing_is_offered_under_a_wrong_uuid(
    machine: FakeMachine, place: int
) -> None:
    listing = render_listing(machine)
    whole = {device.uuid for device in read(machine).devices}
    found = read(machine, listing=listing[: place % len(listing)])
    assert_sound(found)
    stand_in = {d.uuid for d in found.devices if d.uuid.startswith("MIG-GPU-")}
    assert {d.uuid for d in found.devices} - stand_in <= whole
    assert not stand_in or any("stand for them" in warning for warning in found.warnings)


@pytest.mark.parametrize("machine", MACHINES[::2])
def test_line_ends_of_other_systems_change_nothing(machine: FakeMachine) -> None:
    report, listing, topology = (
        render(machine).replace("\n", "\r\n")
        for render in (render_report, render_listing, render_topology)
    )
    found = assemble(
        "n1", parse_report(report), parse_listing(listing), topology=parse_topology(topology)
    )
    assert found == read(machine, topology=True)


@pytest.mark.parametrize("value", ["67,5 C", "67 °C", "67.5 Ц", "nicht verfügbar", "不可用"])
def test_a_value_in_another_language_is_absent_and_never_another_value(value: str) -> None:
    machine = FakeMachine((L40S,))
    report = edited(render_report(machine), "gpu_temp", value)
    (card,) = read(machine, report=report).cards
    assert card.temperature_celsius is None
    assert card.power_watts == L40S.power_watts


def test_instances_that_were_listed_under_one_uuid_are_not_offered() -> None:
    machine = FakeMachine(
        (replace(A100, mig="Enabled", instances=(SLICE, replace(SLICE, gpu_instance=8))),)
    )
    first, second = (device.uuid for device in read(machine).devices)
    found = read(machine, listing=render_listing(machine).replace(second, first))
    assert found.devices == ()
    assert [(out.device, out.reason) for out in found.excluded] == [
        (1000, "mig-mismatch"),
        (1001, "mig-mismatch"),
    ]


def test_cards_beyond_the_ninth_have_numbers_from_two_thousand_on() -> None:
    carved = replace(A100, mig="Enabled", instances=(SLICE, replace(SLICE, gpu_instance=8)))
    machine = FakeMachine(tuple(carved if n in (10, 99) else L40S for n in range(100)))
    devices = {device.label: device.id for device in read(machine, topology=True).devices}
    assert len(devices) == 102
    assert (devices["10/mig0"], devices["10/mig1"]) == (2000, 2001)
    assert (devices["99/mig1"], devices["98"]) == (10901, 98)


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
