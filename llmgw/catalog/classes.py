"""What the name of a device class says, and whether any card can have it.

Pure. Names are made by `llmgw.hardware.classes` from what a driver reports; a person writes them
into a catalog from memory. A name with `*` stands for many and is taken as it is.
"""

from __future__ import annotations

import re

from llmgw.hardware.classes import known_models, model_name, parse_profile, sold_sizes_gb

PROCESSOR = "cpu"
INSTANCE = "-mig-"

PATTERN = r"[a-z0-9*][a-z0-9*.+,-]{0,79}"
"""What a class in a catalog is written with."""

_GIB = 1 << 30
_EXCESS = 1.01
"""A card has at most so much more than the memory that it is sold with, taken as GiB."""

_CARD = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*?)(?:-([1-9][0-9]{0,3})g)?")
_ENDS_WITH_GB = re.compile(r"(.+-[1-9][0-9]{0,3})gi?b")
_STATED = re.compile(r"-([1-9][0-9]{0,3})g$")
_STATED_OF_INSTANCE = re.compile(r"-mig-[0-9cg.*]*\.([1-9][0-9]{0,3})gb[^*]*$")
_SLICES = 7
_PROFILE_EXCESS = 1.05
"""Some drivers round the memory of a whole card's instance up (`7g.189gb` of 186 GB)."""

_WITH_INSTANCES = re.compile(r"a30|a100|h100.*|h200.*|h800|gh200|g?b[23]00|rtx-pro-6000-.*|thor")


def is_instance(name: str) -> bool:
    """Return whether the class is one of MIG instances."""
    return INSTANCE in name


def most_memory_bytes(name: str) -> int | None:
    """Return the most memory that a device of the class can have; `None` if the name is open."""
    found = (_STATED_OF_INSTANCE if is_instance(name) else _STATED).search(name)
    return None if found is None else round(int(found[1]) * _GIB * _EXCESS)


def why_no_card(name: str) -> str | None:
    """Return why no device can have the class, with what to write, or `None` if one may."""
    if "*" in name or name == PROCESSOR:
        return None
    card, of_instance, profile = name.partition(INSTANCE)
    return _wrong_card(card) or (_wrong_instance(card, profile) if of_instance else None)


def another_spelling(name: str) -> str | None:
    """Return how a known card of nearly the same name is written: `rtx4090` for `rtx-4090`."""
    match = _CARD.fullmatch(name.partition(INSTANCE)[0])
    if match is None or sold_sizes_gb(match[1]):
        return None
    joined = match[1].replace("-", "")
    near = next((m for m in known_models() if m.replace("-", "") == joined), None)
    return near and f"{near}-{match[2] or sold_sizes_gb(near)[0]}g"


def _wrong_card(card: str) -> str | None:
    match = _CARD.fullmatch(card)
    if match is None:
        return f"no card is called {card!r:.60}: words, and its memory, such as a100-80g"
    model, memory = match[1], match[2]
    sizes = sold_sizes_gb(model)
    known = ", ".join(f"{model}-{size}g" for size in sizes)
    almost = _ENDS_WITH_GB.fullmatch(card)
    if almost:
        return f"a class ends with the memory in `g`; did you mean {almost[1]}g?"
    plain = model_name(model)
    if plain != model:
        end = f"{memory}g" if memory else "*"
        return f"vendors and form factors are not in a class; did you mean {plain}-{end}?"
    if memory is None:
        told = known or f"{model}-24g"
        return f"a class ends with the card's memory, such as {told}; or write {model}-*"
    if sizes and int(memory) not in sizes:
        return f"no {model} has {memory} GB; there is {known}"
    return None


def _wrong_instance(card: str, text: str) -> str | None:
    profile = parse_profile(text)
    if profile is None:
        known = text == "unknown"  # what a card is asked for whose driver does not say
        return None if known else f"{text!r:.60} is no MIG profile: they look like 1g.10gb"
    match = _CARD.fullmatch(card)
    model, memory = (match[1], match[2]) if match else (card, None)
    if sold_sizes_gb(model) and not _WITH_INSTANCES.fullmatch(model):
        return f"{model} has no MIG: its cards cannot be divided"
    if memory is not None and profile.memory_gb > int(memory) * _PROFILE_EXCESS:
        return f"an instance of {profile.memory_gb} GB does not fit a card of {memory} GB"
    if not (profile.compute_slices or 1) <= profile.slices <= _SLICES:
        return f"no card can be divided into {text}: a card has {_SLICES} slices"
    return None
