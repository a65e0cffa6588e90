"""Class names and MIG profiles: the words that catalogs are written in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.hardware.classes import card_class, instance_class, is_generic, parse_profile

MIB = 2**20


@pytest.mark.parametrize(
    ("product", "memory_mib", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-80g"),
        ("A100-SXM4-40GB", 40537, "a100-40g"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-80g"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80g"),
        ("NVIDIA H100 NVL", 95830, "h100-nvl-94g"),
        ("NVIDIA H200", 143771, "h200-141g"),
        ("NVIDIA L40S", 46068, "l40s-48g"),
        ("NVIDIA A10", 23028, "a10-24g"),
        ("Tesla T4", 15360, "t4-16g"),
        ("Tesla V100-SXM2-32GB", 32510, "v100-32g"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx4090-24g"),
        ("GeForce GTX 1660 Ti", 5944, "gtx1660-ti-6g"),
        ("NVIDIA RTX 4000 SFF Ada Generation", 20475, "rtx-4000-sff-ada-20g"),
        ("NVIDIA RTX A6000", 46068, "rtx-a6000-48g"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            97887,
            "rtx-pro-6000-blackwell-max-q-96g",
        ),
        ("NVIDIA GB10", 122570, "gb10-128g"),
        ("NVIDIA GB10", None, "gb10-128g"),
    ],
)
def test_a_product_is_named_by_model_and_marketed_memory(
    product: str, memory_mib: int | None, expected: str
) -> None:
    assert card_class(product, None if memory_mib is None else memory_mib * MIB) == expected


def test_the_memory_of_the_processor_in_a_name_is_not_the_memory_of_the_card() -> None:
    assert card_class("NVIDIA GH200 480GB", 97871 * MIB) == "gh200-96g"


@pytest.mark.parametrize(
    ("old", "new"),
    [("Tesla T4", "NVIDIA T4"), ("GeForce RTX 3090", "NVIDIA GeForce RTX 3090")],
)
def test_a_card_keeps_its_class_when_a_newer_driver_renames_it(old: str, new: str) -> None:
    assert card_class(old, 16000 * MIB) == card_class(new, 16000 * MIB)


@pytest.mark.parametrize("memory_mib", [15109, 15360, 16280])
def test_a_card_keeps_its_class_when_a_driver_reserves_more(memory_mib: int) -> None:
    assert card_class("Tesla T4", memory_mib * MIB) == "t4-16g"


def test_a_lost_card_keeps_the_class_that_its_name_tells() -> None:
    assert card_class("NVIDIA GB200", None) == card_class("NVIDIA GB200", 189471 * MIB)
    assert card_class("NVIDIA A100-SXM4-80GB", None) == "a100-80g"
    assert card_class("NVIDIA A100-PCIE", None) == "a100"


def test_an_unknown_product_has_a_class_too() -> None:
    assert card_class("NVIDIA Quux 9000", 37 * 2**30) == "quux-9000-40g"
    assert card_class(None, 5 * 2**30) == "unknown-5g"


def test_a_name_that_says_nothing_is_known_as_generic() -> None:
    assert is_generic("Graphics Device")
    assert is_generic("NVIDIA Graphics Device")
    assert not is_generic("NVIDIA L4")


@given(st.text(), st.none() | st.integers(min_value=0, max_value=2**60))
def test_every_product_has_a_class_of_plain_words(product: str, memory: int | None) -> None:
    name = card_class(product, memory)
    assert name.strip("abcdefghijklmnopqrstuvwxyz0123456789-") == ""
    assert name


@pytest.mark.parametrize(
    "name",
    [
        "1g.10gb",
        "1g.10gb+me",
        "1c.3g.71gb",
        "1g.24gb-me",
        "2g.48gb+gfx",
        "1g.24gb+me.all",
        "7g.80gb",
    ],
)
def test_a_profile_reads_back_as_the_driver_names_it(name: str) -> None:
    assert str(parse_profile(name)) == name


def test_a_profile_tells_its_slices_memory_and_share() -> None:
    profile = parse_profile("2c.3g.71gb+me")
    assert profile is not None
    assert (profile.slices, profile.memory_gb, profile.compute_slices) == (3, 71, 2)
    assert profile.attributes == "+me"


@pytest.mark.parametrize("text", ["", "g.10gb", "1g10gb", "1g.10gb+", "0g.5gb", "1g.10gb me"])
def test_what_is_no_profile_is_refused(text: str) -> None:
    assert parse_profile(text) is None


def test_an_instance_is_named_after_its_card_and_profile() -> None:
    assert instance_class("a100-80g", "1g.20gb") == "a100-80g-mig-1g.20gb"
