"""Last words that any engine may have: each pattern is data, and means what it says."""

from __future__ import annotations

import re

import pytest

from llmgw.engines.base import KnownFailure
from llmgw.engines.registry import ENGINES, engine


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        (
            "llama-server: error while loading shared libraries: libcuda.so.1: No such file",
            "a library that the engine was built with is not on the node",
        ),
        ("ModuleNotFoundError: No module named 'vllm._C'", "Python environment is not complete"),
        (
            "Failed to initialize NVML: Driver/library version mismatch",
            "the driver was updated and the one of before is still loaded",
        ),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "the card failed"),
        ("CUDA error: unspecified launch failure", "the card failed"),
        ("RuntimeError: No CUDA GPUs are available", "does not see the device"),
        ("torch.AcceleratorError: CUDA error: out of memory", "not enough free memory"),
        ("OSError: [Errno 28] No space left on device", "a disk of the node is full"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "own memory ran out"),
    ],
)
@pytest.mark.parametrize("name", sorted(ENGINES))
def test_what_befalls_any_engine_is_explained_for_each(name: str, words: str, meaning: str) -> None:
    known = engine(name).explain(f"Traceback (most recent call last):\n{words}\n")
    assert known is not None
    assert meaning in known.meaning


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: incomplete",
            "a file of the model is corrupt",
        ),
        (
            "OSError: It looks like the config file at '/m/config.json' is not a valid JSON file.",
            "a file of the model is corrupt",
        ),
        (
            (
                "Value error, The checkpoint you are trying to load has model type `new` but "
                "Transformers does not recognize this architecture."
            ),
            "does not serve models of this architecture",
        ),
        (
            "Value error, Model architectures ['NewForCausalLM'] are not supported for now.",
            "does not serve models of this architecture",
        ),
        (
            "ValueError: Couldn't instantiate the backend tokenizer from one of: ",
            "the model folder holds no tokenizer",
        ),
        ("RuntimeError: Cannot find any model weights with `/m`", "holds no model"),
        (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'",
            "the model folder is not there",
        ),
        (
            (
                "Value error, User-specified max_model_len (999999) is greater than the derived "
                "max_model_len (max_position_embeddings=4096.0)"
            ),
            "longer than the model was made for",
        ),
        (
            (
                "ValueError: Available memory on node 0 (7.04/8.71 GiB) on kv cache allocation is "
                "less than requested memory for kv (100000.0 GiB)."
            ),
            "the processor's memory has less free",
        ),
        (
            (
                "Available memory on node 0 (6.2/8.71 GiB) on startup is less than desired CPU "
                "memory utilization (0.9, 7.84 GiB)."
            ),
            "the processor's memory has less free",
        ),
        ("pydantic.ValidationError: 1 validation error for ModelConfig", "refuses an argument"),
        ("OSError: [Errno 98] Address already in use", "another program listens on the port"),
    ],
)
def test_what_vllm_0_32_says_is_explained(words: str, meaning: str) -> None:
    known = engine("vllm").explain(f"Traceback (most recent call last):\n{words}\n")
    assert known is not None
    assert meaning in known.meaning


ALL = [(name, known) for name, one in ENGINES.items() for known in one.failures]


@pytest.mark.parametrize(("name", "known"), ALL, ids=lambda x: getattr(x, "meaning", x))
def test_each_failure_is_one_line_each_and_says_what_to_do(name: str, known: KnownFailure) -> None:
    re.compile(known.pattern)
    for text in (known.meaning, known.advice):
        assert text
        assert "\n" not in text
        assert not text.endswith(".")


@pytest.mark.parametrize("name", ["llama.cpp", "vllm", "sglang"])
def test_what_would_fail_anywhere_is_said_to(name: str) -> None:
    """A mistake of the catalog must not make one device after another look bad."""
    mistake = engine(name).explain("error: unrecognized arguments: --x\nerror: invalid argument: x")
    memory = engine(name).explain("CUDA out of memory")
    assert mistake is not None
    assert mistake.everywhere
    assert memory is not None
    assert not memory.everywhere
