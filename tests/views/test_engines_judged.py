"""What doctor says of engines beside cards, and of memory that they lock and share."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmgw.hardware.types import Device, Inventory
from llmgw.views.surroundings import (
    EngineFact,
    engine_findings,
    locked_memory_finding,
    shared_memory_finding,
)

WHOLE = Device(id=0, label="0", card=0, uuid="GPU-0", device_class="l40s-48g")
PART = Device(
    id=1000,
    label="0/mig0",
    card=0,
    uuid="MIG-0",
    device_class="a100-80g-mig-3g.40gb",
    profile="3g.40gb",
)
PROCESSOR = Device(id=900, label="cpu", uuid="CPU-n1", device_class="cpu")
CARDS = Inventory(node="n1", backend="nvml", cuda_version="12.4", devices=(WHOLE,))
CARVED = replace(CARDS, devices=(PART,))
VLLM = EngineFact(name="vllm", program="vllm", version="0.30.0", sees=1, cuda="12.4")


@pytest.mark.parametrize(
    ("fact", "state", "said", "do"),
    [
        (VLLM, "ok", "it sees 1 GPU", ""),
        (replace(VLLM, sees=2), "ok", "it sees 2 GPUs", ""),
        (replace(VLLM, sees=None), "ok", "version 0.30.0", ""),
        (replace(VLLM, sees=0), "warning", "it sees no GPU, though", "torch.zeros"),
        (
            replace(VLLM, sees=0, cuda="13.0"),
            "warning",
            "built for CUDA 13.0, and the driver offers 12.4",
            "update the driver",
        ),
        (replace(VLLM, sees=0, cuda="12.10"), "warning", "the driver offers 12.4", "update"),
        (replace(VLLM, sees=0, cuda=None), "warning", "without CUDA", "a build of it with CUDA"),
        (replace(VLLM, sees=None, blind="no torch"), "warning", "cannot be told: no torch", "it"),
    ],
)
def test_whether_an_engine_sees_the_cards_is_told_with_what_to_do(
    fact: EngineFact, state: str, said: str, do: str
) -> None:
    [found] = engine_findings([fact], CARDS)
    assert found.state == state
    assert said in found.detail
    assert do in (found.do or "")


def test_without_a_card_nothing_that_an_engine_does_not_see_matters() -> None:
    blind = replace(VLLM, sees=0, cuda=None)
    for inventory in (None, replace(CARDS, devices=(PROCESSOR,))):
        assert engine_findings([blind], inventory)[0].state == "ok"


@pytest.mark.parametrize(
    ("name", "version", "state", "said"),
    [
        ("vllm", "0.20.1", "warning", "this version cannot open a MIG instance"),
        ("vllm", "0.9.2rc1", "warning", "this version cannot open a MIG instance"),
        ("vllm", "99.0", "warning", "it is not known whether this version opens"),
        ("vllm", None, "warning", "it is not known whether this version opens"),
        ("sglang", "0.5.1", "warning", "it is not known whether this version opens"),
        ("llama.cpp", "b10434", "ok", ""),
    ],
)
def test_an_engine_on_a_carved_card_is_judged_by_its_version(
    name: str, version: str | None, state: str, said: str
) -> None:
    fact = EngineFact(name=name, program=name, version=version, sees=1)
    [found] = engine_findings([fact], CARVED)
    assert found.state == state
    assert said in found.detail
    assert engine_findings([fact], CARDS)[0].state == "ok"


def test_locked_memory_matters_where_infiniband_is() -> None:
    assert locked_memory_finding(None, infiniband=True).state == "ok"
    assert locked_memory_finding(8 << 20, infiniband=False).state == "ok"
    short = locked_memory_finding(8 << 20, infiniband=True)
    assert (short.state, "LimitMEMLOCK=infinity" in (short.do or "")) == ("warning", True)


def test_shared_memory_that_is_short_or_littered_is_warned_of() -> None:
    assert shared_memory_finding(16 << 30, (), 0).state == "ok"
    assert shared_memory_finding(None, (), 0).state == "unknown"
    assert "--ipc=host" in (shared_memory_finding(64 << 20, (), 0).do or "")
    left = shared_memory_finding(16 << 30, ("psm_1", "psm_2"), 800 << 20)
    assert (left.state, left.do) == ("warning", "rm /dev/shm/psm_1 /dev/shm/psm_2")
    assert "2 files (800 MiB)" in left.detail
