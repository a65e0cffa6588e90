"""What health answers and last words mean, and what is done with references to secrets."""

from __future__ import annotations

import pytest

from llmgw.engines.base import ProbeAnswer, Verdict
from llmgw.engines.references import from_file, resolve
from llmgw.engines.registry import ENGINES, engine
from llmgw.errors import EngineUnavailable


@pytest.mark.parametrize(
    ("engine_name", "status", "was_ready", "verdict"),
    [
        ("llama.cpp", None, False, "loading"),
        ("llama.cpp", 503, False, "loading"),
        ("llama.cpp", 200, False, "ready"),
        ("llama.cpp", 404, False, "broken"),
        ("llama.cpp", 503, True, "broken"),
        ("llama.cpp", None, True, "broken"),
        ("vllm", None, False, "loading"),
        ("vllm", 200, True, "ready"),
        ("vllm", 503, False, "broken"),
        ("vllm", 503, True, "broken"),
        ("vllm", None, True, "broken"),
        ("sglang", 503, False, "loading"),
        ("sglang", 503, True, "broken"),
        ("command", 204, False, "ready"),
        ("command", 502, False, "loading"),
        ("command", 404, False, "broken"),
        ("command", 500, True, "broken"),
    ],
)
def test_a_health_answer_tells_loading_from_broken(
    engine_name: str, status: int | None, was_ready: bool, verdict: Verdict
) -> None:
    assert engine(engine_name).judge(ProbeAnswer(status), was_ready) == verdict


@pytest.mark.parametrize(
    ("engine_name", "words", "meaning"),
    [
        (
            "llama.cpp",
            "E gguf_init_from_file: failed to open GGUF file '/x' (No such file or directory)",
            "the model file is not there",
        ),
        ("llama.cpp", "gguf_init_from_reader: invalid magic characters: 'abcd'", "no GGUF"),
        ("llama.cpp", "data is not within the file bounds, model is corrupted", "no GGUF"),
        ("llama.cpp", "couldn't bind HTTP server socket, hostname: 127.0.0.1", "listens on the"),
        ("llama.cpp", 'error while handling argument "-c": stoi', "does not know an argument"),
        (
            "llama.cpp",
            'error while handling argument "--cache-type-k": Unsupported cache type: x',
            "does not know an argument",
        ),
        ("llama.cpp", "unknown model architecture: 'new'", "too old"),
        ("llama.cpp", "cudaMalloc failed: out of memory", "not enough free memory"),
        (
            "llama.cpp",
            "llama_init_from_model: quantized V cache requires flash_attn to be enabled",
            "only with flash attention",
        ),
        (
            "llama.cpp",
            "ggml_vulkan: Device memory allocation failed.\nvk::Device: ErrorOutOfDeviceMemory",
            "not enough free memory",
        ),
        (
            "vllm",
            "ValueError: invalid literal for int() with base 10: 'GPU-7f57f032'",
            "cannot open a device by its UUID",
        ),
        (
            "sglang",
            "ValueError: invalid literal for int() with base 10: 'MIG-4c60d78c'",
            "cannot open a device by its UUID",
        ),
        ("sglang", "CUDA error: no kernel image is available for execution on the device", "built"),
        (
            "sglang",
            "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
            "driver is older",
        ),
        ("sglang", "torch.OutOfMemoryError: CUDA out of memory. Tried", "not enough free memory"),
        (
            "sglang",
            "ERROR: [Errno 98] error while attempting to bind: address already in use",
            "port",
        ),
        ("sglang", "ValueError: 14 is not divisible by tp_size 4", "evenly"),
        (
            "vllm",
            "OSError: You are trying to access a gated repo.\nAccess to model m/x is restricted",
            "gated",
        ),
        (
            "vllm",
            "OSError: /srv/m does not appear to have a file named config.json",
            "holds no model",
        ),
        ("vllm", "RepositoryNotFoundError: 401 Client Error", "no such repository"),
        ("vllm", "ValueError: invalid literal for int() with base 10: 'MIG-4c6'", "MIG instance"),
        ("vllm", "torch.OutOfMemoryError: CUDA out of memory. Tried", "not enough free memory"),
        ("vllm", "CUDA error: no kernel image is available for execution on the device", "built"),
        ("vllm", "The NVIDIA driver on your system is too old (found version 11)", "driver"),
        ("vllm", "Total number of attention heads (14) must be divisible by tensor", "evenly"),
        ("vllm", "OSError: [Errno 98] Address already in use", "listens on the port"),
        ("vllm", "huggingface_hub.errors.GatedRepoError: 403 Client Error", "gated"),
        ("vllm", "vllm: error: unrecognized arguments: --shutdown-timeout 10", "older than 0.18"),
        ("vllm", "vllm: error: unrecognized arguments: --nonsense", "does not know an argument"),
        ("vllm", "No available memory for the cache blocks.", "too little"),
        (
            "sglang",
            "Not enough memory. Please try to increase --mem-fraction-static.",
            "too little",
        ),
        ("command", "OSError: [Errno 98] Address already in use", "listens on the port"),
    ],
)
def test_last_words_are_explained_with_advice(engine_name: str, words: str, meaning: str) -> None:
    known = engine(engine_name).explain(f"some line\n{words}\nand more")
    assert known is not None
    assert meaning in known.meaning
    assert known.advice


def test_the_mig_failure_is_found_though_a_misleading_line_comes_last() -> None:
    tail = (
        "ValueError: invalid literal for int() with base 10: 'MIG-4c60d78c'\n"
        "pydantic_core.ValidationError: Model architectures ['Llama'] failed to be inspected\n"
    )
    known = engine("vllm").explain(tail)
    assert known is not None
    assert "UUID" in known.meaning


def test_unknown_words_are_not_explained() -> None:
    for known_engine in ENGINES.values():
        assert known_engine.explain("Segmentation fault") is None
        assert known_engine.explain("") is None


def test_an_engine_that_this_version_lacks_says_to_upgrade() -> None:
    with pytest.raises(EngineUnavailable, match="upgrade llmgw"):
        engine("tensorrt")


FILES = {"/run/secrets/token": "from a file", "/srv/an odd (1)": "odd $1"}


def read(path: str) -> str:
    return FILES[path]


def test_references_take_their_value_from_the_node() -> None:
    env = {"A": "Bearer ${TOKEN}", "B": "$HOME ${TOKEN}${X}", "C": "plain"}
    env |= {
        "D": from_file("/run/secrets/token"),
        "E": "x" + from_file("/srv/an odd (1)"),
    }
    assert resolve(env, {"TOKEN": "t", "X": "$1"}, read) == {
        "A": "Bearer t",
        "B": "$HOME t$1",
        "C": "plain",
        "D": "from a file",
        "E": "xodd $1",
    }


def test_a_value_that_looks_like_a_reference_is_not_resolved_again() -> None:
    values = {"A": "${B}", "B": "hidden"}
    assert resolve({"X": "${A}"}, values, read) == {"X": "${B}"}


def test_a_reference_to_nothing_names_every_missing_variable_and_no_value() -> None:
    with pytest.raises(EngineUnavailable, match="refers to A, B,") as caught:
        resolve({"X": "${B}${A}${C}"}, {"C": "hidden"}, read)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("text", ["${file:relative}", "${file:}", "${}", "${1A}", "$A", "${A"])
def test_what_is_no_reference_stays_as_it_is(text: str) -> None:
    assert resolve({"X": text}, {"A": "a"}, read) == {"X": text}
