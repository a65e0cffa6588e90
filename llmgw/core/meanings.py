"""What each condition means, what to do about it, and what it does to placement: tables only.

One vocabulary for what an agent measures (`core.conditions`), for what an inventory says of a card
(its exclusions) and for the driver's critical errors (Xid). Placement asks `AVOIDED`, the views and
doctor show `MEANINGS`; docs/conditions.md is kept in step with both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

AVOIDED = frozenset(
    {
        *("failing", "power-capped", "remap-pending", "stale", "suspect", "throttled"),
        *("unmeasured", "unused"),
    }
)
"""Conditions whose devices may still be used, after all others; any other keeps placement out."""

EVACUATED = frozenset({"lost", "needs-reset", "xid"})
"""Conditions for which what serves on a device is placed elsewhere, and serves until that does."""

_RESET = "nvidia-smi --gpu-reset -i N"

MEANINGS: Mapping[str, tuple[str, str]] = {
    # What an agent measures.
    "hot": (
        "the card has been too warm for a while",
        "nvidia-smi -q -d TEMPERATURE -i N; look at fans, dust, air and neighbours",
    ),
    "throttled": (
        "the card runs slower because of heat or its power supply",
        "nvidia-smi -q -d PERFORMANCE -i N names the reason; look at cooling and power cables",
    ),
    "power-capped": (
        "the card has been at its power limit for long",
        "nothing if that is wanted; else nvidia-smi -i N -pl WATTS raises the limit",
    ),
    "worn": (
        "the card's memory has failed more often than it may",
        (
            "nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER -i N shows it; reset the card if"
            " something is pending, else have it replaced"
        ),
    ),
    "remap-pending": (
        "the card's memory has failed, and a reset will put what failed out of use",
        f"nothing at once: when the card is idle, llmgw agent release, then {_RESET}",
    ),
    "lost": (
        "the card does not answer any more",
        (
            "dmesg | grep -i xid (79 is a card off the bus), then reboot, or llmgw agent release"
            f" and {_RESET}"
        ),
    ),
    "occupied": (
        "processes that are not llmgw's hold memory of the device",
        "nvidia-smi shows them: stop them, or keep the device out of llmgw",
    ),
    "xid": (
        "the driver has reported an error after which the card needs a reset",
        f"llmgw agent release, then {_RESET}, or reboot",
    ),
    "suspect": (
        "the driver has reported an error that may be the card's",
        f"dmesg | grep -i xid; if it comes again, llmgw agent release, then {_RESET}",
    ),
    "unmeasured": (
        "something was the matter when last measured, and it is not measured any more",
        "nvidia-smi -q -i N shows what the card still tells",
    ),
    "stale": (
        "what the driver tells of the card has not moved for a while, by its own clock",
        "nvidia-smi -q -i N; if that hangs or shows the same again and again, reboot the machine",
    ),
    "driver-mismatch": (
        "the driver was upgraded and not reloaded: what runs goes on, and nothing new can start",
        "reboot the machine, or stop what uses the cards and load the nvidia modules anew",
    ),
    "failing": (
        "a replica failed on the device again and again",
        "llmgw ctl replicas -o wide says why; llmgw doctor looks at the device",
    ),
    "unused": (
        "an engine serves, and none of its processes is on the device that it was given",
        "see its output: it may be built for the processor alone",
    ),
    # What ails the node.
    "tool-hung": (
        "a tool of the driver does not end: what it would tell is not known",
        "dmesg | grep -i xid, then reboot the machine",
    ),
    "unwritable": (
        "the agent could not write down what happens, and did nothing meanwhile; engines served on",
        "df -h and mount: make room on the disk of its data folder, or make that writable",
    ),
    "mended": (
        "the agent's records were damaged: what could be read of them was taken over",
        "look at that disk; the detail says where the damaged file is kept",
    ),
    "untold": (
        "the log does not take an event of this node: it is too large",
        "raise max_payload of the nats-server to 1280KB, then restart the agent: it tells anew",
    ),
    # What an inventory says of a card or device, and offers nothing on it.
    "needs-reset": (
        "the driver asks for a reset before the card works again",
        f"stop what runs on it, then {_RESET}",
    ),
    "unreadable": (
        "the card does not tell what is needed to place on it",
        "nvidia-smi -q -i N shows what it answers; see dmesg for Xid lines",
    ),
    "no-permission": (
        "the driver does not let this user read the card",
        (
            "ls -l /dev/nvidia*: let this user read them; a container needs them given"
            " (--gpus all, or --device /dev/nvidia0 --device /dev/nvidiactl)"
        ),
    ),
    "mig-empty": (
        "MIG is on and nothing is carved: the card offers no device",
        (
            "nvidia-smi mig -i N -cgi PROFILE -C (nvidia-smi mig -i N -lgip lists the profiles), or"
            " turn MIG off: nvidia-smi -i N -mig 0"
        ),
    ),
    "mig-pending": (
        "a change of the MIG mode waits for a reset of the card",
        f"stop everything that uses the card, llmgw's agent too, then {_RESET}, or reboot",
    ),
    "mig-mismatch": (
        "what the driver says about the card's instances contradicts itself",
        "llmgw doctor again, when nobody changes instances (nvidia-smi -L)",
    ),
    "compute-mode": (
        "the card's compute mode keeps engines out",
        "nvidia-smi -i N -c DEFAULT",
    ),
    "fabric": (
        "the NVLink fabric of the card is not ready",
        "systemctl restart nvidia-fabricmanager, then nvidia-smi -q | grep -A 3 Fabric",
    ),
}
"""By name: what it means, and what to do, where `N` stands for the card's index."""


def what_to_do(name: str, card: int | None = None) -> str | None:
    """Return what to do about a condition, with the card's index in it where there is one."""
    known = MEANINGS.get(name)
    if known is None or card is None:
        return known and known[1]
    return known[1].replace("-i N", f"-i {card}")


class Xid(NamedTuple):
    """One critical error of the driver. Without a condition it says nothing about the card.

    `ends` are the engines that an agent ends for it: none, the one that it hit, or all of the card.
    """

    meaning: str
    condition: str | None
    ends: Literal["none", "one", "all"] = "none"


XIDS: Mapping[int, Xid] = {
    13: Xid("a program's own error: graphics engine exception", None),
    31: Xid("a program's own error: memory page fault", None),
    43: Xid("a program's own error: its channel was stopped", None),
    45: Xid("a program ended or was ended", None),
    48: Xid("a memory error that ECC could not correct", "xid"),
    62: Xid("the card's microcontroller has halted", "xid"),
    63: Xid("a row or page was noted to be replaced at the next reset", None),
    64: Xid("a row or page could not be noted to be replaced", "xid"),
    68: Xid("a program's own error: video decoder exception", None),
    74: Xid("an NVLink error", "xid"),
    79: Xid("the card fell off the bus", "lost", "all"),
    92: Xid("many memory errors that ECC corrected", "suspect"),
    94: Xid("a memory error that hit one program alone", "suspect", "one"),
    95: Xid("a memory error that may have hit every program", "xid", "all"),
    109: Xid("a switch between programs timed out", "xid"),
    119: Xid("the card's system processor (GSP) did not answer in time", "xid"),
    120: Xid("an error of the card's system processor (GSP)", "xid"),
    140: Xid("memory errors that were not recovered from", "xid"),
    154: Xid("the driver asks for something else to bring the card back", None),
}
"""The critical errors that are known here (NVIDIA's list of Xid errors).

What to do follows NVIDIA's own buckets: IGNORE and RESTART_APP say nothing about the card, and
RESET_GPU is `xid`. Of 109 others disagree: here it is one that needs a reset.
"""

PAIRED = frozenset({63})
"""Without a condition, but told beside 48: whether the memory that failed goes out of use."""

UNLISTED = Xid("not in llmgw's list", "suspect")
