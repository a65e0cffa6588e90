"""The environment that shows an engine the devices it was given, and no others.

Pure: it builds variables and sets none. Every engine module calls `device_environment`; the
supervisor removes `DEVICE_VARIABLES` from what an engine inherits before it applies a launch's
own, so that a variable of the agent's never widens what a replica sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from llmgw.engines.base import Grant

DEVICE_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "GGML_VK_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    }
)
"""Variables that choose devices. A catalog may not set them, and an engine inherits none."""


def on_processor(grants: Sequence[Grant]) -> bool:
    """Return whether `grants` holds no accelerator."""
    return all(grant.device_class == "cpu" for grant in grants)


def device_environment(
    grants: Sequence[Grant], *, by: Literal["uuid", "index"], vulkan: bool = False
) -> dict[str, str]:
    """Return the variables that make exactly `grants` visible.

    `by` is how the engine can read whole cards: by UUID, which an index that changes over a
    reboot cannot mislead, or by index in PCI order for an engine that takes the variable apart
    as numbers. `vulkan` also sets the variable of llama.cpp's Vulkan backend. It never goes with
    a MIG instance: Vulkan does not know instances and would open the whole card.
    """
    if on_processor(grants):
        return {"CUDA_VISIBLE_DEVICES": ""} | ({"GGML_VK_VISIBLE_DEVICES": ""} if vulkan else {})
    uuids = ",".join(grant.uuid for grant in grants)
    indexes = [grant.card_index for grant in grants]
    if any(grant.uuid.startswith("MIG-") for grant in grants) or None in indexes:
        return {"CUDA_VISIBLE_DEVICES": uuids}
    numbers = ",".join(map(str, indexes))
    if by == "uuid":
        environment = {"CUDA_VISIBLE_DEVICES": uuids}
    else:
        environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": numbers}
    return environment | ({"GGML_VK_VISIBLE_DEVICES": numbers} if vulkan else {})
