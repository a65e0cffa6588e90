"""Every kind of machine that both backends must read alike, described once."""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.testing.machines import NO_CLUSTER, FakeCard, FakeInstance, FakeMachine, FakeProcess

from .support import A100, L40S

CLUSTER = "0a0b0c0d-0000-0000-0000-000000000001"

A100_40G = FakeCard(name="NVIDIA A100-SXM4-40GB", memory_total_mib=40960, memory_reserved_mib=605)
H100 = FakeCard(
    name="NVIDIA H100 80GB HBM3",
    architecture="Hopper",
    memory_total_mib=81559,
    memory_reserved_mib=480,
    margin_celsius=52,
    mig="Disabled",
    ecc_uncorrected=0,
    ecc_volatile_corrected=4,
    ecc_volatile_uncorrected=0,
    remapped_rows=0,
    clock_graphics_mhz=1980,
    clock_memory_mhz=2619,
    pcie_replays=150,
    processors="0-23,48-71",
    fabric=("Completed", NO_CLUSTER, 0),
)
BRIDGED = replace(H100, name="NVIDIA H100 PCIe", fabric=None)
GB200 = FakeCard(
    name="NVIDIA GB200",
    architecture="Blackwell",
    memory_total_mib=189471,
    memory_reserved_mib=742,
    margin_celsius=60,
    mig="Disabled",
    addressing="ATS",
    processors="0-71",
    fabric=("Completed", CLUSTER, 2),
)
GH200 = replace(
    GB200,
    name="NVIDIA GH200 480GB",
    architecture="Hopper",
    memory_total_mib=97871,
    memory_reserved_mib=607,
    fabric=None,
)
RTX4090 = FakeCard(
    name="NVIDIA GeForce RTX 4090",
    architecture="Ada Lovelace",
    memory_total_mib=24564,
    memory_reserved_mib=346,
    memory_used_mib=2,
    memory_excess_kib=300,
    margin_celsius=49,
    fan_percent=0,
    processes=(FakeProcess(pid=2611, memory_mib=9), FakeProcess(pid=2700)),
)
T4 = FakeCard(
    name="Tesla T4",
    architecture="Turing",
    memory_total_mib=15360,
    memory_reserved_mib=388,
    memory_used_mib=1032,
    slowdown_celsius=93,
    shutdown_celsius=96,
    clock_graphics_mhz=585,
    clock_memory_mhz=5000,
    pcie_replays=2,
    power_watts=26.78,
    power_limit_watts=70.0,
    ecc_corrected=2,
    ecc_uncorrected=0,
    ecc_volatile_corrected=1,
    ecc_volatile_uncorrected=0,
    retired_pages=1,
    throttled_by=("sw_power_cap", "hw_thermal_slowdown"),
)
GB10 = FakeCard(
    name="NVIDIA GB10",
    architecture="Blackwell",
    memory_total_mib=None,
    memory_reserved_mib=None,
    memory_used_mib=None,
    pci="0000000F:01:00.0",
    power_limit_watts=None,
    clock_memory_mhz=None,
    pcie_replays=None,
    processes=(FakeProcess(pid=77, memory_mib=512),),
)


def carved(card: FakeCard, *instances: FakeInstance, processes: bool = False) -> FakeCard:
    """The card in MIG mode with these instances, each with a process where asked for."""
    running = tuple(
        FakeProcess(
            pid=100 + n,
            memory_mib=10,
            gpu_instance=one.gpu_instance,
            compute_instance=one.compute_instance,
        )
        for n, one in enumerate(instances)
    )
    return replace(
        card,
        mig="Enabled",
        instances=instances,
        processes=running if processes else (),
        utilization_percent=None,
        remapped_rows=None,
    )


def part(
    profile: str,
    memory_mib: int,
    gpu_instance: int,
    *,
    compute_instance: int = 0,
    multiprocessors: int = 14,
    index: int | None = None,
) -> FakeInstance:
    """An instance of a profile."""
    return FakeInstance(
        profile=profile,
        memory_total_mib=memory_mib,
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        multiprocessors=multiprocessors,
        index=index,
    )


MIXED_A100 = (
    carved(A100, *(part("1g.10gb", 9728, 7 + n) for n in range(7)), processes=True),
    carved(A100, part("3g.40gb", 40192, 1), part("2g.20gb", 19968, 5), part("1g.10gb+me", 9728, 9)),
    carved(A100, part("1g.20gb", 19968, 4, index=5), part("1g.20gb", 19968, 6, index=2)),
    carved(A100, part("7g.80gb", 80384, 0)),
    carved(A100),
    *(A100,) * 3,
)
H200 = replace(H100, name="NVIDIA H200", memory_total_mib=143771)
SHARED_H200 = carved(
    H200,
    part("1c.3g.71gb", 71424, 2, multiprocessors=16),
    part("2c.3g.71gb", 71424, 2, compute_instance=1, multiprocessors=32),
    part("1g.18gb", 16384, 9),
    processes=True,
)

MACHINES: dict[str, FakeMachine] = {
    "a100-mixed-mig": FakeMachine(MIXED_A100, driver="535.104.05", switched=(5, 6, 7)),
    "a100-40g-mig-510": FakeMachine(
        (carved(A100_40G, part("3g.20gb", 20096, 1), part("3g.20gb", 20096, 2)),),
        driver="510.47.03",
    ),
    "a100-old-ids-450": FakeMachine(
        (
            carved(
                A100_40G,
                FakeInstance(
                    profile="1g.5gb", memory_total_mib=4864, gpu_instance=7, uuid="MIG-GPU-a/7/0"
                ),
            ),
        ),
        driver="450.80.02",
    ),
    "a30": FakeMachine(
        (
            carved(
                FakeCard(name="NVIDIA A30", memory_total_mib=24576),
                *(part("1g.6gb", 5836, 3 + n) for n in range(4)),
            ),
        )
    ),
    "h100-sxm": FakeMachine((H100,) * 8, driver="570.124.06", switched=tuple(range(8))),
    "h100-virtual-machine": FakeMachine(
        (replace(H100, fabric=None),) * 4, switched=(0, 1, 2, 3), switch_visible=False
    ),
    "h100-pcie-bridges": FakeMachine((BRIDGED,) * 4, links=((0, 1), (2, 3)), down=((1, 2),)),
    "h100-fabric-525": FakeMachine((replace(H100, margin_celsius=None),), driver="525.85.12"),
    "h200-shared-gpu-instance": FakeMachine((SHARED_H200, H200), driver="590.48.01"),
    "b200": FakeMachine(
        (replace(H100, name="NVIDIA B200", architecture="Blackwell", memory_total_mib=183359),) * 8,
        switched=tuple(range(8)),
    ),
    "gb200-fabric": FakeMachine((GB200,) * 4, switched=(0, 1, 2, 3)),
    "l40s": FakeMachine((replace(L40S, margin_celsius=40),) * 4),
    "rtx4090": FakeMachine((RTX4090, RTX4090)),
    "rtx4090-535": FakeMachine((replace(RTX4090, margin_celsius=None),) * 2, driver="535.54.03"),
    "t4": FakeMachine((T4,), driver="515.65.01"),
    "t4-470": FakeMachine((T4,), driver="470.82.01", cuda="11.4"),
    "gb10": FakeMachine((GB10,)),
    "gh200": FakeMachine((GH200,), driver="570.124.06"),
    "gh200-coherent": FakeMachine(
        (replace(GH200, memory_total_mib=None, memory_reserved_mib=None, memory_used_mib=None),)
    ),
    "jetson": FakeMachine(
        (
            replace(
                GB10,
                name="Orin (nvgpu)",
                architecture="Ampere",
                uuid="0000a0a0-0000-0000-0000-00000000000a",
                pci="N/A",
                temperature_celsius=None,
                power_watts=None,
                clock_graphics_mhz=None,
                processes=(),
                processors="",
                memory_node=None,
            ),
        )
    ),
    "unified-with-zero": FakeMachine(
        (replace(GB10, memory_total_mib=0, memory_used_mib=0, memory_reserved_mib=0),)
    ),
    "vgpu-guest": FakeMachine(
        (
            FakeCard(
                name="GRID T4-16Q",
                memory_total_mib=16384,
                temperature_celsius=0,
                power_watts=None,
                power_limit_watts=None,
                process_error=4,
            ),
        )
    ),
    "v100-mesh": FakeMachine(
        (FakeCard(name="Tesla V100-SXM2-32GB", memory_total_mib=32768),) * 8,
        links=(
            *((0, 1), (0, 2), (0, 3), (0, 6), (1, 2), (1, 3), (1, 7), (2, 3), (2, 4), (3, 5)),
            *((4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)),
        ),
    ),
    "a-hundred-cards": FakeMachine(
        tuple(
            carved(A100, part("7g.80gb", 80384, 0)) if n in (10, 99) else A100 for n in range(100)
        ),
        switched=tuple(n for n in range(100) if n not in (10, 99)),
    ),
    "two-memory-nodes": FakeMachine(
        (A100, replace(A100, memory_node=3, processors="16-31,96-127,200"))
    ),
    "processors-withheld": FakeMachine((A100, replace(A100, processors=""))),
}

# Each state in which something cannot run, beside a good card.
STATES: dict[str, FakeMachine] = {
    "lost": FakeMachine((L40S, replace(L40S, lost=True), L40S)),
    "cannot-be-opened": FakeMachine((A100, replace(A100, handle_error=15), A100)),
    "cannot-be-opened-unknown": FakeMachine((L40S, replace(L40S, handle_error=999))),
    "no-permission-to-open": FakeMachine((replace(L40S, handle_error=4), L40S)),
    "needs-a-reset": FakeMachine((replace(L40S, memory_error=16), L40S)),
    "asks-for-a-reset": FakeMachine((replace(H100, recovery="Reset"), H100)),
    "asks-for-a-reset-535": FakeMachine(
        (replace(L40S, recovery="Reset"), L40S), driver="535.54.03"
    ),
    "remapping-failed": FakeMachine((replace(H100, remapped_rows=9, remap_failed=True), H100)),
    "remapping-pending": FakeMachine((replace(H100, remapped_rows=1, remap_pending=True), H100)),
    "errors-above-the-limit": FakeMachine((replace(H100, ecc_volatile_uncorrected=11), H100)),
    "errors-at-the-limit": FakeMachine((replace(H100, ecc_volatile_uncorrected=10), H100)),
    "page-waits-for-retirement": FakeMachine((replace(T4, retired_pending=True),)),
    "asks-to-drain": FakeMachine((replace(H100, recovery="Drain P2P"), H100)),
    "memory-unknown": FakeMachine((replace(L40S, memory_error=999), L40S)),
    "memory-not-told": FakeMachine((replace(L40S, memory_error=3), L40S)),
    "memory-forbidden": FakeMachine((replace(L40S, memory_error=4), L40S)),
    "slices-only-container": FakeMachine(
        (replace(carved(A100, part("1g.10gb", 9728, 7)), memory_error=4, process_error=4),)
    ),
    "processes-forbidden": FakeMachine((replace(L40S, process_error=4), L40S)),
    "mig-empty": FakeMachine((replace(A100, mig="Enabled"), A100)),
    "mig-pending-on": FakeMachine((replace(A100, mig_pending="Enabled"), A100)),
    "mig-pending-off": FakeMachine(
        (replace(carved(A100, part("1g.10gb", 9728, 7)), mig_pending="Disabled"), A100)
    ),
    "partly-carved": FakeMachine(
        (carved(A100, part("1c.3g.40gb", 40192, 1), part("3g.40gb", 40192, 2, multiprocessors=42)),)
    ),
    "exclusive": FakeMachine((replace(L40S, compute_mode="Exclusive_Process"), L40S)),
    "exclusive-and-held": FakeMachine(
        (
            replace(
                L40S,
                compute_mode="Exclusive_Process",
                processes=(FakeProcess(pid=41, memory_mib=5),),
            ),
            L40S,
        )
    ),
    "exclusive-and-not-told": FakeMachine(
        (replace(L40S, compute_mode="Exclusive_Thread", process_error=4), L40S)
    ),
    "prohibited": FakeMachine((replace(L40S, compute_mode="Prohibited"), L40S)),
    "fabric-in-progress": FakeMachine((replace(H100, fabric=("In Progress", "N/A", 0)), H100)),
    "fabric-not-started": FakeMachine((replace(H100, fabric=("Not Started", "N/A", 0)), H100)),
    "fabric-failed": FakeMachine((replace(H100, fabric_code=23), replace(H100, fabric_code=23))),
    "impossible-process": FakeMachine(
        (replace(L40S, processes=(FakeProcess(pid=2**32 - 1, memory_mib=1),)), L40S)
    ),
    "generic-name": FakeMachine((replace(L40S, name="Graphics Device", memory_total_mib=5912),)),
}
