"""MIG instances: joined from two outputs, sharing memory where they share it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmgw.hardware.types import Process
from llmgw.testing.fake_smi import (
    FakeCard,
    FakeInstance,
    FakeMachine,
    FakeProcess,
    render_listing,
    render_report,
)

from .support import A100, DRIVERS, MIB, read

QUARTER = FakeInstance(
    profile="1g.20gb", memory_total_mib=19968, gpu_instance=3, memory_used_mib=12
)
CARVED = replace(
    A100,
    mig="Enabled",
    utilization_percent=None,
    instances=tuple(replace(QUARTER, gpu_instance=3 + n) for n in range(4)),
)


@pytest.mark.parametrize("driver", DRIVERS[1:])
def test_a_carved_card_is_its_instances_and_no_device_itself(driver: str) -> None:
    inventory = read(FakeMachine((A100, CARVED), driver=driver))
    instances = inventory.devices[1:]
    assert [device.id for device in inventory.devices] == [0, 1100, 1101, 1102, 1103]
    assert [device.label for device in instances] == ["1/mig0", "1/mig1", "1/mig2", "1/mig3"]
    assert {device.device_class for device in instances} == {"a100-80g-mig-1g.20gb"}
    assert {device.memory_total_bytes for device in instances} == {19968 * MIB}
    assert {device.memory_used_bytes for device in instances} == {12 * MIB}
    assert {device.utilization_percent for device in instances} == {None}
    assert [device.memory_pool for device in instances] == ["1/gi3", "1/gi4", "1/gi5", "1/gi6"]
    assert all(device.uuid.startswith("MIG-") for device in instances)
    assert inventory.excluded == ()
    card = inventory.cards[1]
    assert (card.mig_mode, card.temperature_celsius, card.power_watts) == ("enabled", 30, 50)


@pytest.mark.parametrize("text", ["1g", "g.20gb", "1g.20gib", "1g-20gb", "1G.20GB", "of-tomorrow"])
def test_a_text_that_is_no_profile_becomes_no_class_name(text: str) -> None:
    machine = FakeMachine((CARVED,))
    listing = render_listing(machine).replace("1g.20gb", text)
    found = read(machine, listing=listing).devices
    assert {device.uuid for device in found} == {d.uuid for d in read(machine).devices}
    for device in found:
        assert (device.device_class, device.profile) in (
            ("a100-80g-mig-1g.20gb", "1g.20gb"),
            ("a100-80g-mig-unknown", None),
        )


def test_instances_are_joined_by_card_and_index_and_not_by_order() -> None:
    sparse = tuple(
        replace(QUARTER, index=index, gpu_instance=9 - index, uuid=f"MIG-{index}")
        for index in (5, 0, 2)
    )
    inventory = read(FakeMachine((replace(CARVED, instances=sparse),)))
    found = [(device.id, device.uuid, device.gpu_instance) for device in inventory.devices]
    assert found == [(1000, "MIG-0", 9), (1002, "MIG-2", 7), (1005, "MIG-5", 4)]


def test_compute_instances_of_one_gpu_instance_draw_on_one_pool() -> None:
    h200 = FakeCard(
        name="NVIDIA H200",
        architecture="Hopper",
        memory_total_mib=143771,
        mig="Enabled",
        instances=(
            FakeInstance(
                profile="1c.3g.71gb", memory_total_mib=71424, gpu_instance=2, multiprocessors=16
            ),
            FakeInstance(
                profile="2c.3g.71gb",
                memory_total_mib=71424,
                gpu_instance=2,
                compute_instance=1,
                multiprocessors=32,
            ),
            FakeInstance(
                profile="1g.18gb", memory_total_mib=16384, gpu_instance=9, multiprocessors=16
            ),
        ),
        processes=(
            FakeProcess(pid=41, memory_mib=100, gpu_instance=2, compute_instance=1),
            FakeProcess(pid=42, memory_mib=200, gpu_instance=9, compute_instance=0),
        ),
    )
    inventory = read(FakeMachine((h200,)))
    pools = [device.memory_pool for device in inventory.devices]
    assert pools == ["0/gi2", "0/gi2", "0/gi9"]
    assert inventory.devices[0].device_class == "h200-141g-mig-1c.3g.71gb"
    assert [device.processes for device in inventory.devices] == [
        (),
        (Process(pid=41, memory_bytes=100 * MIB),),
        (Process(pid=42, memory_bytes=200 * MIB),),
    ]
    unlisted = read(FakeMachine((h200,)), listing="")
    assert [d.profile for d in unlisted.devices] == ["1c.3g.71gb", "2c.3g.71gb", "1g.18gb"]


def test_a_process_that_names_no_instance_makes_all_lists_unknown() -> None:
    busy = replace(CARVED, processes=(FakeProcess(pid=41, memory_mib=1),))
    assert {d.processes for d in read(FakeMachine((busy,))).devices} == {None}


def test_ids_of_old_drivers_are_kept_as_printed_and_checked() -> None:
    uuid = "GPU-00000001-0000-4000-8000-000000000000"
    old = tuple(
        FakeInstance(
            profile="1g.10gb", memory_total_mib=9728, gpu_instance=gi, uuid=f"MIG-{uuid}/{gi}/0"
        )
        for gi in (7, 8, 11)
    )
    machine = FakeMachine((replace(CARVED, instances=old),), driver="450.80.02")
    inventory = read(machine)
    assert [device.uuid for device in inventory.devices] == [
        f"MIG-{uuid}/{n}/0" for n in (7, 8, 11)
    ]
    swapped = render_listing(machine).replace("/8/0", "/13/0")
    inventory = read(machine, listing=swapped)
    assert [device.id for device in inventory.devices] == [1000, 1002]
    assert [(out.device, out.reason) for out in inventory.excluded] == [(1001, "mig-mismatch")]


def test_slices_that_no_compute_instance_uses_are_warned_of() -> None:
    whole = FakeInstance(profile="3g.40gb", memory_total_mib=40192, gpu_instance=1)
    third = replace(whole, profile="1c.3g.40gb", gpu_instance=2)
    machine = FakeMachine((replace(CARVED, instances=(whole, third)),))
    (warning,) = read(machine).warnings
    assert "GPU instance 2 of card 0 has 3 compute slices" in warning
    assert "use 1" in warning
    assert "nvidia-smi mig -i 0 -gi 2 -lcip" in warning
    rest = replace(third, profile="2c.3g.40gb", compute_instance=1)
    inventory = read(FakeMachine((replace(CARVED, instances=(whole, third, rest)),)))
    assert inventory.warnings == ()
    assert [device.device_class for device in inventory.devices[1:]] == [
        "a100-80g-mig-1c.3g.40gb",
        "a100-80g-mig-2c.3g.40gb",
    ]
    assert len({device.memory_pool for device in inventory.devices}) == 2


def test_an_instance_that_only_one_output_knows_is_not_placed_on() -> None:
    before, after = FakeMachine((CARVED,)), FakeMachine((replace(CARVED, instances=(QUARTER,)),))
    for report, listing in ((before, after), (after, before)):
        inventory = read(report, listing=render_listing(listing))
        assert [device.id for device in inventory.devices] == [1000]
        assert {(out.device, out.reason) for out in inventory.excluded} == {
            (1001, "mig-mismatch"),
            (1002, "mig-mismatch"),
            (1003, "mig-mismatch"),
        }


def test_a_card_whose_memory_is_hidden_still_offers_its_instances() -> None:
    machine = FakeMachine((CARVED,))
    report = render_report(machine)
    total = f"<total>{A100.memory_total_mib} MiB</total>"
    hidden = report.replace(total, "<total>Insufficient Permissions</total>")
    inventory = read(machine, report=hidden)
    assert len(inventory.devices) == 4
    assert inventory.excluded == ()


@pytest.mark.parametrize(
    ("name", "architecture", "card_mib", "profile", "memory_mib", "multiprocessors"),
    [
        ("NVIDIA A100-SXM4-80GB", "Ampere", 81920, "1g.20gb", 19968, 14),
        ("NVIDIA A100-SXM4-80GB", "Ampere", 81920, "2g.20gb", 19968, 28),
        ("NVIDIA A100-SXM4-80GB", "Ampere", 81920, "7g.80gb", 80384, 98),
        ("NVIDIA A100-SXM4-40GB", "Ampere", 40960, "3g.20gb", 19968, 42),
        ("NVIDIA A100-SXM4-40GB", "Ampere", 40960, "4g.20gb", 20096, 56),
        ("NVIDIA A30", "Ampere", 24576, "1g.6gb", 5836, 14),
        ("NVIDIA H100 80GB HBM3", "Hopper", 81559, "1g.10gb", 9984, 16),
        ("NVIDIA H100 80GB HBM3", "Hopper", 81559, "1g.20gb", 20096, 26),
        ("NVIDIA H100 80GB HBM3", "Hopper", 81559, "2g.20gb", 20096, 32),
        ("NVIDIA H100 80GB HBM3", "Hopper", 81559, "3g.40gb", 40448, 60),
        ("NVIDIA H200", "Hopper", 143771, "2g.35gb", 33280, 32),
        ("NVIDIA H200", "Hopper", 143771, "3g.71gb", 71424, 60),
        ("NVIDIA RTX PRO 6000 Blackwell", "Blackwell", 97887, "1g.24gb", 24187, 46),
    ],
)
def test_without_a_listing_the_profile_follows_from_the_numbers(
    name: str,
    architecture: str,
    card_mib: int,
    profile: str,
    memory_mib: int,
    multiprocessors: int,
) -> None:
    card = FakeCard(
        name=name,
        architecture=architecture,
        memory_total_mib=card_mib,
        mig="Enabled",
        instances=(
            FakeInstance(
                profile="unused",
                memory_total_mib=memory_mib,
                gpu_instance=5,
                multiprocessors=multiprocessors,
            ),
        ),
    )
    inventory = read(FakeMachine((card,)), listing="")
    (device,) = inventory.devices
    assert device.profile == profile
    assert device.device_class.endswith(f"-mig-{profile}")
    assert device.uuid == f"MIG-{inventory.cards[0].uuid}/5/0"
    assert "ids of the old form" in inventory.warnings[0]
