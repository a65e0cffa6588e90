"""The processor as a device: for machines without cards, tests, and small models beside cards.

It is opt-in, and its memory is the system's (or the control group's, where that is less).
`discover` calls it. It measures no utilisation and no processes, and does not pretend to.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from llmgw.hardware.host import ROOT, machine_id, require_memory
from llmgw.hardware.types import PROCESSOR_DEVICE_ID, Device, device_label

_NAMESPACE = uuid.UUID("6f3f3c1e-5f0e-5f47-9d0b-8a3f4f0f1c55")


def processor(node: str, root: Path = ROOT) -> Device:
    """The node's processor as a device of class `cpu`.

    Its UUID is made from the machine id and the node's name: the same over reboots, and different
    on machines that were cloned from one image. Raises `BackendUnavailable` where the size of
    the memory is not known.
    """
    memory = require_memory(root)
    free = memory.available_bytes
    return Device(
        id=PROCESSOR_DEVICE_ID,
        label=device_label(PROCESSOR_DEVICE_ID),
        uuid=f"CPU-{uuid.uuid5(_NAMESPACE, f'{machine_id(root)}/{node}')}",
        device_class="cpu",
        memory_total_bytes=memory.total_bytes,
        memory_used_bytes=None if free is None else max(0, memory.total_bytes - free),
        memory_free_bytes=free,
    )
