"""What each engine is started with, for each kind of device."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.catalog.entries import Entry
from llmgw.engines.base import Grant, Launch, LaunchRequest
from llmgw.engines.registry import engine
from llmgw.errors import EngineUnavailable

GIB = 2**30
CPU = Grant(uuid="cpu-node1", device_class="cpu")
MIG = Grant(uuid="MIG-11", device_class="a100-80g-mig-1g.10gb", card_index=2)
CARDS = tuple(
    Grant(uuid=f"GPU-{i}", device_class="a100-80g", card_index=i, memory_total_bytes=80 * GIB)
    for i in (1, 3)
)


def launch(engine_name: str, *grants: Grant, **fields: object) -> Launch:
    given: dict[str, Any] = {"source": "/srv/m", "memory_bytes": 40 * GIB, **fields}
    entry = Entry(name="m", engine=engine_name, classes=("*",), **given)
    request = LaunchRequest(
        replica="r1",
        entry=entry,
        grants=grants,
        program=(f"/opt/{engine_name}",),
        host="127.0.0.1",
        port=18100,
    )
    return engine(engine_name).launch(request)


LLAMA = "/opt/llama.cpp -m /srv/m --alias m --host 127.0.0.1 --port 18100 --metrics"
VLLM = "/opt/vllm serve /srv/m --served-model-name m --host 127.0.0.1 --port 18100"
VLLM += " --shutdown-timeout 10"
SGLANG = "/opt/sglang serve --model-path /srv/m --served-model-name m"
SGLANG += " --host 127.0.0.1 --port 18100"
TP_2 = "--tensor-parallel-size 2"
SIZES = "--context-length 8192 --max-running-requests 16"


@pytest.mark.parametrize(
    ("engine_name", "grants", "fields", "command_line"),
    [
        ("llama.cpp", [CPU], {}, f"{LLAMA} --device none -ngl 0"),
        ("llama.cpp", [MIG], {}, f"{LLAMA} -ngl 999"),
        ("llama.cpp", [*CARDS], {"gpus": 2, "pp": 2}, f"{LLAMA} -ngl 999"),
        ("llama.cpp", [*CARDS], {"gpus": 2, "tp": 2}, f"{LLAMA} -ngl 999 --split-mode row"),
        ("llama.cpp", [MIG], {"context": 4096}, f"{LLAMA} -c 4096 -ngl 999"),
        ("llama.cpp", [MIG], {"context": 64, "parallel": 4}, f"{LLAMA} -c 256 -np 4 -ngl 999"),
        (
            "llama.cpp",
            [MIG],
            {"cache_key_dtype": "q8_0", "cache_value_dtype": "q4_0"},
            f"{LLAMA} --cache-type-k q8_0 --cache-type-v q4_0 -ngl 999",
        ),
        ("llama.cpp", [MIG], {"cache_key_dtype": "q8_0"}, f"{LLAMA} --cache-type-k q8_0 -ngl 999"),
        ("llama.cpp", [MIG], {"args": ("--jinja",)}, f"{LLAMA} -ngl 999 --jinja"),
        ("vllm", [CPU], {}, VLLM),
        (
            "vllm",
            [Grant(uuid="cpu-node1", device_class="cpu", memory_total_bytes=160 * GIB)],
            {},
            f"{VLLM} --gpu-memory-utilization 0.2500",
        ),
        ("vllm", [MIG], {}, VLLM),
        ("vllm", [CARDS[0]], {}, f"{VLLM} --gpu-memory-utilization 0.5000"),
        (
            "vllm",
            [*CARDS],
            {"tp": 2, "context": 8192, "parallel": 16, "memory_bytes": 80 * GIB},
            f"{VLLM} --max-model-len 8192 --max-num-seqs 16 {TP_2} --gpu-memory-utilization 0.9700",
        ),
        ("vllm", [MIG], {"pp": 2}, f"{VLLM} --pipeline-parallel-size 2"),
        (
            "vllm",
            [CARDS[0]],
            {"cache_key_dtype": "fp8", "cache_value_dtype": "fp8", "gpu_memory_fraction": 0.85},
            f"{VLLM} --kv-cache-dtype fp8 --gpu-memory-utilization 0.8500",
        ),
        ("vllm", [MIG], {"gpu_memory_fraction": 0.9}, f"{VLLM} --gpu-memory-utilization 0.9000"),
        (
            "sglang",
            [CARDS[0]],
            {"cache_key_dtype": "fp8_e5m2", "gpu_memory_fraction": 0.8},
            f"{SGLANG} --kv-cache-dtype fp8_e5m2 --mem-fraction-static 0.8000",
        ),
        ("sglang", [MIG], {}, SGLANG),
        ("sglang", [CPU], {}, f"{SGLANG} --device cpu"),
        (
            "sglang",
            [*CARDS],
            {"tp": 2, "context": 8192, "parallel": 16},
            f"{SGLANG} {SIZES} --tp-size 2 --mem-fraction-static 0.4400",
        ),
    ],
)
def test_an_engine_gets_the_command_line_of_its_entry(
    engine_name: str, grants: list[Grant], fields: dict[str, Any], command_line: str
) -> None:
    assert " ".join(launch(engine_name, *grants, **fields).argv) == command_line


def test_parts_on_several_nodes_meet_where_they_were_told() -> None:
    def last(engine_name: str, rank: int) -> str:
        entry = Entry(name="m", engine=engine_name, classes=("*",), memory_bytes=GIB, source="/m")
        entry = replace(entry, gpus=4, tp=2, pp=2, nodes=2)
        program, leader = (engine_name,), "[fd00::7]:29500"
        request = LaunchRequest("r1", entry, CARDS, program, "::1", 18100, rank, leader)
        return " ".join(engine(engine_name).launch(request).argv)

    where = "--nnodes 2 --node-rank {} --master-addr fd00::7 --master-port 29500"
    assert where.format(0) in last("vllm", 0)
    assert where.format(1) + " --headless" in last("vllm", 1)
    assert "--headless" not in last("vllm", 0)
    assert "--nnodes 2 --node-rank 1 --dist-init-addr [fd00::7]:29500" in last("sglang", 1)


def test_without_a_meeting_point_several_nodes_are_refused() -> None:
    for engine_name in ("vllm", "sglang"):
        with pytest.raises(EngineUnavailable, match="r1 spans 2 nodes"):
            launch(engine_name, *CARDS, gpus=4, tp=2, pp=2, nodes=2)


@pytest.mark.parametrize(
    ("engine_name", "version", "opens"),
    [
        ("llama.cpp", None, True),
        ("llama.cpp", (0, 1), True),
        ("vllm", (0, 9, 2), False),
        ("vllm", (0, 20, 1), False),
        ("vllm", (0, 32, 0), None),
        ("vllm", None, None),
        ("sglang", (0, 5, 23), None),
    ],
)
def test_it_is_known_which_versions_open_a_mig_instance(
    engine_name: str, version: tuple[int, ...] | None, opens: bool | None
) -> None:
    assert engine(engine_name).instances.opens(version) is opens


def test_words_of_a_cache_type_are_those_that_the_engine_has() -> None:
    assert "q8_0" in engine("llama.cpp").cache_dtypes
    assert "fp8" in engine("vllm").cache_dtypes
    assert not set(engine("llama.cpp").cache_dtypes) & set(engine("vllm").cache_dtypes)
    for name in ("llama.cpp", "vllm", "sglang"):
        reserved = {f for f, why in engine(name).reserved_args.items() if "kv_cache_dtype" in why}
        assert reserved, name


BY_UUID = {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-3", "GGML_VK_VISIBLE_DEVICES": "1,3"}
BY_INDEX = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,3"}
INSTANCE = {"CUDA_VISIBLE_DEVICES": "MIG-11"}
NONE = {"CUDA_VISIBLE_DEVICES": ""}
DEVICE_NAMES = ("CUDA", "GGML_VK", "NVIDIA")


@pytest.mark.parametrize(
    ("engine_name", "grants", "expected"),
    [
        ("llama.cpp", CARDS, BY_UUID),
        ("llama.cpp", [MIG], INSTANCE),
        ("llama.cpp", [CPU], NONE | {"GGML_VK_VISIBLE_DEVICES": ""}),
        ("vllm", CARDS, BY_INDEX),
        ("vllm", [MIG], INSTANCE),
        ("vllm", [CPU], NONE),
        ("sglang", CARDS, BY_INDEX),
        ("sglang", [MIG], INSTANCE),
        ("command", CARDS, BY_UUID),
        ("command", [MIG], INSTANCE),
        ("command", [], NONE | {"GGML_VK_VISIBLE_DEVICES": ""}),
        ("vllm", [Grant(uuid="GPU-7", device_class="x")], {"CUDA_VISIBLE_DEVICES": "GPU-7"}),
    ],
)
def test_an_engine_sees_what_it_was_given_and_nothing_else(
    engine_name: str, grants: list[Grant], expected: dict[str, str]
) -> None:
    env = launch(engine_name, *grants).env
    assert {k: v for k, v in env.items() if k.startswith(DEVICE_NAMES)} == expected


def test_an_entry_adds_variables_and_cannot_widen_what_is_visible() -> None:
    for name in ("llama.cpp", "vllm", "sglang", "command"):
        env = launch(name, MIG, env={"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "${T}"}).env
        assert env["CUDA_VISIBLE_DEVICES"] == "MIG-11"
        assert env["HF_TOKEN"] == "${T}"


def test_a_repository_is_named_as_one_and_may_be_fetched() -> None:
    llama = launch("llama.cpp", CPU, source="org/m:Q4_K_M")
    assert llama.argv[1:3] == ("-hf", "org/m:Q4_K_M")
    assert "LLAMA_ARG_OFFLINE" not in llama.env
    vllm = launch("vllm", CPU, source="org/m", revision="v1")
    assert vllm.argv[1:3] == ("serve", "org/m")
    assert vllm.argv[-2:] == ("--revision", "v1")
    assert "HF_HUB_OFFLINE" not in vllm.env


def test_a_model_on_the_node_keeps_the_engine_off_the_network() -> None:
    assert launch("llama.cpp", CPU).env["LLAMA_ARG_OFFLINE"] == "1"
    assert launch("vllm", CPU).env["HF_HUB_OFFLINE"] == "1"
    assert launch("sglang", CPU).env["HF_HUB_OFFLINE"] == "1"


def test_a_command_has_its_placeholders_filled_and_other_braces_left() -> None:
    started = launch(
        "command",
        CPU,
        source=None,
        command=("/opt/serve", "--bind={host}:{port}", '{"a": "{x}"}'),
        args=("{model}", "; rm -rf $HOME"),
    )
    assert started.argv == (
        *("/opt/serve", "--bind=127.0.0.1:18100", '{"a": "{x}"}'),
        *("m", "; rm -rf $HOME"),
    )
    assert started.env["LLMGW_PORT"] == "18100"
    assert started.env["LLMGW_HOST"] == "127.0.0.1"
    assert started.env["LLMGW_MODEL"] == "m"


def test_health_is_asked_where_the_entry_says() -> None:
    for name in ("llama.cpp", "vllm", "sglang", "command"):
        assert launch(name, CPU).health_path == "/health"
        assert launch(name, CPU, health_path="/ready").health_path == "/ready"


def test_vllm_has_finished_draining_before_it_is_killed() -> None:
    argv = launch("vllm", CPU, stop_seconds=60.0).argv
    assert argv[argv.index("--shutdown-timeout") + 1] == "55"
    argv = launch("vllm", CPU, stop_seconds=2.0).argv
    assert argv[argv.index("--shutdown-timeout") + 1] == "1"
