"""What happens to the cards of a pretended NVML: critical errors and changes of MIG.

For tests, beside `fake_nvml`. Whoever has registered for an event is told of it, as by the true
library; who asks later is not. A card supports the events that its answers say:

    library = write_fake_nvml(tmp_path, machine, changed=supports_events(0))
    tell_event(library, card=0, kind=XID, data=79)
"""

from __future__ import annotations

from pathlib import Path

XID = 0x8
MIG_CONFIG_CHANGE = 0x100


def supports_events(*cards: int) -> dict[str, str]:
    """The answers of cards whose critical errors and changes of MIG can be registered for."""
    kinds = f"={XID | MIG_CONFIG_CHANGE}"
    return {f"{card} nvmlDeviceGetSupportedEventTypes": kinds for card in cards}


def tell_event(library: Path, card: int, kind: int, data: int = 0) -> None:
    """Have an event happen on a card. Of an `XID` the data is its number."""
    with library.with_name(library.name + ".events").open("a", encoding="ascii") as file:
        file.write(f"{card} {kind} {data}\n")
