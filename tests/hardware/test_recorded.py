"""Recorded hardware, where recordings are at hand: every number as others read it.

The recordings are no part of the project. The folder is `LLMGW_SAMPLES`, or `shared/samples` beside
the repository; without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from llmgw.errors import BackendUnavailable
from llmgw.hardware.assemble import assemble
from llmgw.hardware.captures import read_capture
from llmgw.hardware.smi_failures import explain
from llmgw.hardware.smi_list import Listing, parse_listing
from llmgw.hardware.smi_xml import parse_report
from llmgw.hardware.topology import cliques, parse_topology
from llmgw.hardware.types import Inventory
from llmgw.testing import fake_nvml

from .support import MIB

BESIDE = Path(__file__).parents[3] / "shared" / "samples"
SAMPLES = Path(os.environ.get("LLMGW_SAMPLES", BESIDE))

pytestmark = pytest.mark.skipif(
    not (SAMPLES / "EXPECTED.json").exists(), reason="no recordings at hand"
)


@cache
def expected() -> dict[str, Any]:
    if not (SAMPLES / "EXPECTED.json").exists():
        return {}
    found: dict[str, Any] = json.loads((SAMPLES / "EXPECTED.json").read_text())
    return found


@cache
def inventory(name: str) -> Inventory:
    if name.endswith(".xml"):
        return assemble("n1", parse_report((SAMPLES / name).read_text()), Listing())
    return read_capture("n1", SAMPLES / name)


def text(name: str) -> str:
    return (SAMPLES / "text" / name).read_text()


def mib(value: float | None) -> int | None:
    return None if value is None else int(value * MIB)


CARDS = [(name, gpu["index"]) for name, found in expected().items() for gpu in found["gpus"]]


@pytest.mark.parametrize("name", expected())
def test_the_driver_is_read(name: str) -> None:
    found = inventory(name)
    assert found.driver_version == expected()[name]["driver"]
    assert found.cuda_version == expected()[name]["cuda"]
    assert len(found.cards) == len(expected()[name]["gpus"])


@pytest.mark.parametrize(("name", "index"), CARDS)
def test_a_card_is_read_as_recorded(name: str, index: int) -> None:
    want = expected()[name]["gpus"][index]
    card = inventory(name).cards[index]
    assert (card.index, card.name) == (index, want["name"])
    assert (card.pci or "").endswith(want["bus"])
    assert card.memory_total_bytes == mib(want["total"])
    assert card.memory_reserved_bytes == mib(want["reserved"])
    assert card.memory_used_bytes == mib(want["used"])
    assert card.memory_free_bytes == mib(want["free"])
    assert card.utilization_percent == want["util"]
    assert card.temperature_celsius == want["temp"]
    assert card.temperature_slowdown_celsius == want["slow_abs"]
    assert card.temperature_margin_celsius == want["tlimit_margin"]
    assert (card.power_watts, card.power_limit_watts) == (want["watts"], want["limit"])
    assert card.fan_percent == want["fan"]


@pytest.mark.parametrize(("name", "index"), CARDS)
def test_the_state_of_a_card_is_read_as_recorded(name: str, index: int) -> None:
    want = expected()[name]["gpus"][index]
    card = inventory(name).cards[index]
    assert card.wear.ecc_uncorrected == want["ecc_unc_agg"]
    assert card.wear.remap_pending == {"No": False, "Yes": True, None: None}[want["remap_pending"]]
    modes = {"Enabled": "enabled", "Disabled": "disabled"}
    assert card.mig_mode == modes.get(want["mig"])
    assert card.mig_pending == modes.get(want["mig_pending"])
    assert card.recovery_action == {"None": "none"}.get(want["recovery"])
    state, cluster, clique = want["fabric"]
    if state == "Completed":
        assert card.fabric is not None
        assert card.fabric.state == state
        assert (card.fabric.cluster_uuid, card.fabric.clique) == (cluster, int(clique))
    else:
        assert card.fabric is None


@pytest.mark.parametrize(("name", "index"), CARDS)
def test_the_devices_of_a_card_are_read_as_recorded(name: str, index: int) -> None:
    want = expected()[name]["gpus"][index]
    devices = [device for device in inventory(name).devices if device.card == index]
    lost = {out.card for out in inventory(name).excluded if out.reason == "lost"}
    assert (index in lost) == want["lost"]
    if want["mig_devices"]:
        assert [
            (d.id, d.gpu_instance, d.compute_instance, d.memory_total_bytes, d.memory_used_bytes)
            for d in devices
        ] == [
            (1000 + 100 * index + m["index"], m["gi"], m["ci"], mib(m["total"]), mib(m["used"]))
            for m in want["mig_devices"]
        ]
    elif want["lost"] or want["total"] is None:
        assert devices == []
    else:
        (device,) = devices
        assert device.memory_total_bytes == mib(want["total"])
        found = [(p.pid, p.memory_bytes) for p in device.processes or ()]
        assert found == [(p["pid"], mib(p["mem"])) for p in want["procs"]]


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("a100-80g-mig", ["a100-80g-mig-1g.20gb"] * 4),
        ("a100-40g-mig", ["a100-40g-mig-3g.20gb"] * 2),
        ("h100x8", ["h100-80g"] * 8),
        ("t4", ["t4-16g"]),
        ("rtx4000-sff-ada", ["rtx-4000-sff-ada-20g"]),
        ("gtx1660ti-driver418", ["graphics-device-6g"]),
        ("rtx3090-processes", ["rtx3090-24g"]),
        ("rtx3080-driver595", ["rtx3080-10g"]),
    ],
)
def test_devices_have_the_classes_that_a_catalog_names(name: str, classes: list[str]) -> None:
    assert [device.device_class for device in inventory(name).devices] == classes


def test_peculiarities_are_read_right() -> None:
    assert inventory("a100-80g-mig").warnings == ("the driver attaches 4 cards and 1 answered",)
    assert {card.nvlink_domain for card in inventory("h100x8").cards} == {"node:n1/0"}
    (domain,) = {card.nvlink_domain for card in inventory("gb200x4").cards}
    assert domain == "00000001-0000-0000-0000-000000000001/2"
    assert [device.id for device in inventory("gb200-one-lost").devices] == [0]
    assert "generic" in inventory("gtx1660ti-driver418").warnings[0]
    wear = inventory("t4").cards[0].wear
    assert (wear.retired_pages, wear.remapped_rows) == (0, None)
    assert inventory("rtx4000-sff-ada").cards[0].wear.remapped_rows == 0
    assert inventory("xml/qx-gb10-excerpt.xml").cards[0].unified


def test_limits_clocks_and_replays_are_read() -> None:
    h100 = inventory("h100x8").cards[0]
    assert (h100.temperature_slowdown_margin_celsius, h100.temperature_slowdown_celsius) == (
        -2,
        None,
    )
    assert (h100.temperature_shutdown_margin_celsius, h100.temperature_shutdown_celsius) == (
        -8,
        None,
    )
    assert (h100.clock_graphics_mhz, h100.clock_memory_mhz, h100.pcie_replays) == (345, 2619, 150)
    assert (h100.wear.ecc_volatile_corrected, h100.wear.ecc_volatile_uncorrected) == (0, 0)
    for name, slowdown, shutdown, graphics, memory in (
        ("a100-80g-mig", 89, 92, 1275, 1593),
        ("t4", 93, 96, 585, 5000),
        ("gtx1660ti-driver418", 93, 96, 300, 405),
        ("rtx3080-driver595", 95, 98, 1950, 9251),
    ):
        card = inventory(name).cards[0]
        assert card.temperature_slowdown_celsius == slowdown
        assert card.temperature_shutdown_celsius == shutdown
        assert card.temperature_slowdown_margin_celsius is None
        assert (card.clock_graphics_mhz, card.clock_memory_mhz) == (graphics, memory)
    carved = inventory("a100-40g-mig").cards[0].wear
    assert (carved.ecc_uncorrected, carved.ecc_volatile_uncorrected) == (0, None)
    lost = inventory("gb200-one-lost").cards[1]
    assert (lost.wear.ecc_volatile_uncorrected, lost.wear.ecc_uncorrected) == (None, None)


@pytest.mark.parametrize(
    ("name", "processors", "nodes"),
    [
        ("topo-gb200x4-ansi-emptyaffinity.txt", {0: "0-35", 1: "0-35"}, {0: 0, 1: 0, 2: 1, 3: 1}),
        ("topo-pair-nv12-ansi.txt", {0: "0-31", 1: "0-31"}, {0: 0, 1: 0}),
        ("topo-v100x8-hybridmesh_418.txt", dict.fromkeys(range(8), "0-95"), {}),
        (
            "topo-pcie6-ansi-2026.txt",
            {n: "0-23,48-71" if n < 4 else "24-47,72-95" for n in range(6)},
            {n: int(n > 3) for n in range(6)},
        ),
    ],
)
def test_what_a_card_is_near_is_read(
    name: str, processors: dict[int, str], nodes: dict[int, int]
) -> None:
    topology = parse_topology(text(name))
    assert topology is not None
    assert (topology.cpus, topology.numa) == (processors, nodes)


def test_the_profile_follows_without_the_listing() -> None:
    for name, profile in (("a100-80g-mig", "1g.20gb"), ("a100-40g-mig", "3g.20gb")):
        report = parse_report((SAMPLES / name / "nvidia-smi-q-x.xml").read_text())
        found = assemble("n1", report, Listing())
        assert {device.profile for device in found.devices} == {profile}


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("topo-v100x8-hybridmesh_418.txt", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("topo-gb200x4-ansi-emptyaffinity.txt", ((0, 1, 2, 3),)),
        ("topo-pair-nv12-ansi.txt", ((0, 1),)),
        ("topo-pcie6-ansi-2026.txt", ()),
    ],
)
def test_topologies_give_the_groups_that_are_really_linked(
    name: str, groups: tuple[tuple[int, ...], ...]
) -> None:
    topology = parse_topology(text(name))
    assert topology is not None
    assert cliques(topology.peers) == groups


def test_listings_of_old_and_new_drivers_are_read() -> None:
    old = parse_listing(text("L-a100-mig7-oldformat_450.txt")).cards[0]
    assert [instance.ids for instance in old.instances] == [
        (n, 0) for n in (7, 8, 9, 11, 12, 13, 14)
    ]
    mixed = parse_listing(text("L-a100x4-one-mig_535.54.txt")).cards
    assert [len(card.instances) for card in mixed] == [4, 0, 0, 0]
    shared = parse_listing(text("L-h200-mig-2ci_590.48.txt")).cards[0]
    assert [i.profile for i in shared.instances[:2]] == ["1c.3g.71gb", "2c.3g.71gb"]


@pytest.mark.parametrize(
    ("name", "code", "advice"),
    [
        ("fail-no-driver_rc9.txt", 9, "modprobe"),
        ("fail-mismatch_rc18.txt", 18, "570.124"),
        ("fail-handle-lost_rc15.txt", 15, "0000:02:00.0"),
        ("fail-nvml-unknown-container_rc255.txt", 255, "Restart the container"),
    ],
)
def test_failures_say_what_to_do(name: str, code: int, advice: str) -> None:
    assert advice in explain(code, text(name))
    with pytest.raises(BackendUnavailable):
        parse_report(text(name))


@pytest.mark.parametrize("driver", ["590.48.01", "610.57.04"])
def test_the_pretended_library_has_no_symbol_that_true_ones_lack(driver: str) -> None:
    true = set((SAMPLES / "symbols" / f"nvml_{driver}.txt").read_text().split())
    source = Path(fake_nvml.__file__).with_suffix(".c").read_text()
    pretended = set(re.findall(r"^(?:int|const char \*)\s*(nvml\w+)\(", source, re.MULTILINE))
    pretended |= set(re.findall(r"^(?:TEXT|NUMBER|NUMBER_OF)\((nvml\w+)", source, re.MULTILINE))
    assert len(pretended) > 40
    assert pretended <= true
