"""Class names: what a catalog asks for, made from a product's name and memory.

Pure. One card has one class, whichever backend or driver names it: vendor words and form factors
are dropped, the memory is the marketed one. The backends call it; a catalog never needs it.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

import msgspec

_DROPPED = re.compile(
    r"nvidia|tesla|quadro|geforce|grid|gpu|sxm[0-9]*|pcie|hbm[0-9]*e?|dgxs|fhhl"
    r"|generation|edition|workstation|with|design|ac|lc"
)
_MEMORY_IN_NAME = re.compile(r"\b([0-9]{1,4}) ?gb?\b")
_GENERIC_NAMES = frozenset({"graphics-device", "device", "unknown"})

# Sizes that cards are sold with. What a driver reports is up to a tenth less (ECC, firmware).
_SIZES_GB: tuple[int, ...] = (
    *(1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96),
    *(128, 141, 144, 180, 186, 192, 256, 288, 384, 512),
)
_SHORTFALL = 0.10
_EXCESS = 0.01
_FAR = 0.12

# Cards whose report may lie between two sizes, or be missing: the memory they are sold with.
_MARKETED_GB: dict[str, tuple[int, ...]] = {
    "a10": (24,),
    "a100": (40, 80),
    "a30": (24,),
    "a40": (48,),
    "b200": (180,),
    "b300": (288,),
    "gb10": (128,),
    "gb200": (186,),
    "gb300": (288,),
    "gh200": (96, 144),
    "h100": (80, 96, 64),
    "h100-nvl": (94,),
    "h200": (141,),
    "h200-nvl": (141,),
    "h800": (80,),
    "l4": (24,),
    "l40": (48,),
    "l40s": (48,),
    "p100": (12, 16),
    "rtx-6000-ada": (48,),
    "rtx-a6000": (48,),
    "rtx-pro-6000-blackwell": (96,),
    "rtx-pro-6000-blackwell-max-q": (96,),
    "rtx-pro-6000-blackwell-server": (96,),
    "rtx3090": (24,),
    "rtx4090": (24,),
    "rtx5090": (32,),
    "t4": (16,),
    "thor": (128,),
    "v100": (16, 32),
}

_UNIFIED_MODELS = ("gb10", "thor", "orin", "xavier", "tegra")


def card_class(product: str | None, memory_bytes: int | None) -> str:
    """The class of a card, such as `h100-80g`. An unknown product has one too.

    Without any known memory (a lost card of a product sold in several sizes) it is the model alone.
    """
    model = model_name(product)
    memory = marketed_gb(model, product, memory_bytes)
    return model if memory is None else f"{model}-{memory}g"


@lru_cache(maxsize=64)  # asked for each card of each sample
def model_name(product: str | None) -> str:
    """The model without vendor words, form factor and memory: `rtx4090`, `h100-nvl`, `t4`."""
    text = re.sub(r"\([^)]*\)", " ", (product or "").lower())
    joined = "geforce" in text or not re.search(r"\brtx\b", text)
    text = _MEMORY_IN_NAME.sub(" ", text)
    words = [w for w in re.findall(r"[a-z0-9]+", text) if not _DROPPED.fullmatch(w)]
    if joined and len(words) > 1 and words[0] in ("rtx", "gtx") and words[1][0].isdigit():
        words[:2] = [words[0] + words[1]]
    return "-".join(words) or "unknown"


def marketed_gb(model: str, product: str | None, memory_bytes: int | None) -> int | None:
    """The memory that a card is sold with, in GB.

    The driver's number decides; a number in the product's name counts only where it agrees
    (`GH200 480GB` names the processor's memory). `None` where neither says anything.
    """
    sold = _MARKETED_GB.get(model, ())
    named = [int(n) for n in _MEMORY_IN_NAME.findall((product or "").lower())]
    if not memory_bytes:
        candidates = [n for n in named if not sold or n in sold] or list(sold)
        return candidates[0] if len(candidates) == 1 else None
    gib = memory_bytes / 2**30
    near = [n for n in (*named, *sold) if abs(gib - n) <= n * _FAR]
    if near:
        return min(near, key=lambda n: abs(gib - n))
    fitting = [n for n in _SIZES_GB if n * (1 - _SHORTFALL) <= gib <= n * (1 + _EXCESS)]
    return fitting[0] if fitting else max(1, math.floor(gib + 0.5))


def known_models() -> tuple[str, ...]:
    """The models whose memory sizes are known, as `model_name` gives them."""
    return tuple(_MARKETED_GB)


def sold_sizes_gb(model: str) -> tuple[int, ...]:
    """The memory sizes that a model is sold with, in GB; empty where that is not known."""
    return _MARKETED_GB.get(model, ())


def is_generic(product: str | None) -> bool:
    """Whether the driver does not know the product and so only says that it is a device."""
    return model_name(product) in _GENERIC_NAMES


def is_unified(product: str | None) -> bool:
    """Whether the product is known to have no memory of its own but the system's."""
    return model_name(product).split("-")[0] in _UNIFIED_MODELS


class Profile(msgspec.Struct, frozen=True):
    """A MIG profile: `1c.3g.71gb` is one of three compute slices over 71 GB; `+me` an attribute."""

    slices: int
    memory_gb: int
    compute_slices: int | None = None
    attributes: str = ""

    def __str__(self) -> str:
        compute = f"{self.compute_slices}c." if self.compute_slices else ""
        return f"{compute}{self.slices}g.{self.memory_gb}gb{self.attributes}"


_PROFILE = re.compile(
    r"(?:([1-9][0-9]?)c\.)?([1-9][0-9]?)g\.([1-9][0-9]{0,3})gb"
    r"((?:[+-][a-z]+(?:\.[a-z]+)*(?:,[+-]?[a-z]+(?:\.[a-z]+)*)*)*)",
    re.ASCII,
)


def parse_profile(text: str) -> Profile | None:
    """A profile as the driver names it, or `None` if the text is none."""
    match = _PROFILE.fullmatch(text)
    if match is None:
        return None
    compute = int(match[1]) if match[1] else None
    return Profile(int(match[2]), int(match[3]), compute, match[4])


def instance_class(of_card: str, profile: str | None) -> str:
    """The class of a MIG instance, `<card class>-mig-<profile>`."""
    return f"{of_card}-mig-{profile or 'unknown'}"
