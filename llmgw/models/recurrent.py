"""What layers without a growing cache keep: the fixed state of one sequence, in elements.

Pure. Shapes as in the papers of Mamba and Mamba-2, Gated DeltaNet and Griffin, and as engines
allocate them: a short convolution's last inputs, and the recurrent state. Sources: llama.cpp's
`n_embd_r` and `n_embd_s`, vLLM's `MambaStateShapeCalculator`.
"""

from __future__ import annotations

from typing import NamedTuple


class State(NamedTuple):
    """Elements kept per sequence: of the convolution, and of the recurrence."""

    conv: int
    state: int


def mamba(inner: int, states: int, kernel: int, groups: int = 0) -> State:
    """Mamba (`groups` 0) or Mamba-2, whose convolution also covers B and C of each group."""
    return State(max(kernel - 1, 0) * (inner + 2 * groups * states), inner * states)


def delta_net(
    key_heads: int, value_heads: int, key_length: int, value_length: int, kernel: int
) -> State:
    """Gated DeltaNet (Qwen3-Next) and KDA (Kimi Linear): queries, keys and values convolved."""
    convolved = 2 * key_heads * key_length + value_heads * value_length
    return State(max(kernel - 1, 0) * convolved, value_heads * key_length * value_length)


def linear_attention(heads: int, head_length: int) -> State:
    """Lightning attention (MiniMax): one matrix per head."""
    return State(0, heads * head_length * head_length)


def short_convolution(width: int, kernel: int) -> State:
    """The gated short convolution of LFM2."""
    return State(max(kernel - 1, 0) * width, 0)


def linear_recurrence(width: int, kernel: int) -> State:
    """Griffin's RG-LRU (RecurrentGemma): a convolution and one vector."""
    return State(max(kernel - 1, 0) * width, width)


def rwkv(width: int, head_length: int, shifts: int) -> State:
    """RWKV: shifted tokens and one matrix per head."""
    return State(shifts * width, width * head_length)
