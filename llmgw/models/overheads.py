"""What each engine takes on a device beside weights and cache, and how it cuts its cache up.

Pure. These are the parts that no file tells, so each is a rule with its source:

- CUDA context, libraries and their workspaces: 0.3 to 0.6 GiB on A100 and H100 by vLLM's logs
  ("non_torch_memory") and `nvidia-smi` of an idle process.
- NCCL's buffers: about 1 GiB with two ranks or more (vLLM pull request 10511: 1.79 GiB at tp 1
  against 3.58 GiB at tp 2, driver included).
- CUDA graphs: 0.2 to 1.6 GiB by vLLM's "Graph capturing finished ... took"; growing with the model.
- vLLM's activations: the peak of a forward pass over `max_num_batched_tokens`, or of sampling,
  which holds some ten copies of the logits of all sequences (1.26 GiB for Llama 3 8B, same place).
- llama.cpp's compute buffer: logits of one `-ub` batch of 512, the inputs of attention and of the
  feed-forward network, and the mask over the context ("compute buffer size" in its log).
- SGLang's `--mem-fraction-static` covers weights and cache; the rest of the device is for
  activations and graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from llmgw.models.types import MemoryPart, Metadata

GIB = 1 << 30
MIB = 1 << 20

CONTEXT_BYTES = 512 * MIB
NCCL_BYTES = GIB
GRAPHS_SHARE = 0.01
GRAPHS_LEAST_BYTES = 256 * MIB

BATCHED_TOKENS = 8192
SAMPLED_SEQUENCES = 256
LOGIT_COPIES = 10

UNMEASURED_BYTES = 2 * GIB
"""Taken for activations or the compute buffer where the model's widths are not known."""

MICRO_BATCH = 512
LLAMA_SLOTS = 4
"""How many sequences `llama-server` serves without `-np`; they share one cache."""

STATIC_SHARE = 0.88
"""Of the memory of an entry, as `llmgw.engines.sglang` gives it to `--mem-fraction-static`."""
SWA_SHARE = 0.8
"""SGLang's `--swa-full-tokens-ratio`: what windowed layers get of the tokens of full ones."""


class Granularity(NamedTuple):
    """How an engine rounds the tokens of one sequence, and what it caches beyond a window."""

    tokens: int
    windowed: int


GRANULARITY: Mapping[str, Granularity] = {
    "llama.cpp": Granularity(256, MICRO_BATCH),
    "vllm": Granularity(16, BATCHED_TOKENS),
    "sglang": Granularity(64, BATCHED_TOKENS),
}

ENGINES = tuple(GRANULARITY)


def engine_parts(
    metadata: Metadata,
    *,
    engine: str,
    context: int,
    sequences: int,
    ranks: int,
    tp: int,
    shard_bytes: int,
    processor: bool,
) -> tuple[MemoryPart, ...]:
    """Return what the engine takes beside weights and cache on its fullest device.

    `shard_bytes` are the weights there; `ranks` how many devices work together.
    """
    if engine == "llama.cpp":
        compute = _compute_buffer(metadata, context * sequences)
        return (compute,) if processor else (compute, _context(1))
    activations = _activations(metadata, sequences, tp)
    if processor:
        return (activations,)
    return (activations, _graphs(shard_bytes), _context(ranks))


def _context(ranks: int) -> MemoryPart:
    size = CONTEXT_BYTES + (NCCL_BYTES if ranks > 1 else 0)
    said = "CUDA context and libraries" + (", NCCL between the ranks" if ranks > 1 else "")
    return MemoryPart(name="engine", bytes=size, assumption=said)


def _graphs(shard_bytes: int) -> MemoryPart:
    size = max(GRAPHS_LEAST_BYTES, int(GRAPHS_SHARE * shard_bytes))
    said = "CUDA graphs: a hundredth of the weights, at least 256 MiB"
    return MemoryPart(name="graphs", bytes=size, assumption=said)


def _activations(metadata: Metadata, sequences: int, tp: int) -> MemoryPart:
    """The peak of a forward pass over 8192 tokens, or of sampling: these come one after another."""
    if not metadata.hidden_length or not metadata.vocabulary:
        return _unmeasured("activations")
    width = 2 * metadata.hidden_length + -(-3 * metadata.feed_forward_length // tp)
    forward = BATCHED_TOKENS * width * 2
    sampled = max(sequences, 1) * metadata.vocabulary * 4 * LOGIT_COPIES
    return MemoryPart(
        name="activations",
        bytes=max(forward, sampled),
        assumption=(
            f"a forward pass over {BATCHED_TOKENS} tokens, or the logits of {sequences} sequences"
        ),
    )


def _compute_buffer(metadata: Metadata, cells: int) -> MemoryPart:
    if not metadata.hidden_length or not metadata.vocabulary:
        return _unmeasured("compute")
    logits = MICRO_BATCH * metadata.vocabulary * 4
    width = 4 * metadata.hidden_length + 2 * metadata.feed_forward_length
    mask = cells * MICRO_BATCH * 2
    return MemoryPart(
        name="compute",
        bytes=logits + MICRO_BATCH * width * 4 + mask,
        assumption=(
            f"logits, layer inputs and mask of a batch of {MICRO_BATCH} with flash attention; "
            "without it, more"
        ),
    )


def _unmeasured(name: str) -> MemoryPart:
    said = "the model's widths are not known: a cautious 2 GiB"
    return MemoryPart(name=name, bytes=UNMEASURED_BYTES, assumption=said)
