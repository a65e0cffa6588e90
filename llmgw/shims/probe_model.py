"""A model of half a megabyte that means nothing, for finding out whether a llama-server runs here.

Pure: bytes out. A binary built for another processor loads its libraries, prints its version and
lists its devices without complaint; it dies on an illegal instruction only when it multiplies.
So the probe in `llmgw.programs` has it load this model and warm it up. Its matrices are stored in
the kinds that real models use, because each kind has instructions of its own: a server that
multiplies half floats can still die on AMX at the first 4-bit matrix. All weights are zero; the
layout is GGUF version 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

_WIDTH = 256
_UNKNOWN_TOKEN, _NORMAL_TOKEN, _CONTROL_TOKEN, _BYTE_TOKEN = 2, 1, 3, 6
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_ALIGNMENT = 32


def probe_model() -> bytes:
    """Return the file's content."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "a"]
    kinds = [_UNKNOWN_TOKEN, _CONTROL_TOKEN, _CONTROL_TOKEN, *[_BYTE_TOKEN] * 256, _NORMAL_TOKEN]
    values = [
        _text("general.architecture", "llama"),
        *(_number(f"llama.{name}", value) for name, value in _HYPERPARAMETERS.items()),
        _entry("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)),
        _text("tokenizer.ggml.model", "llama"),
        _array("tokenizer.ggml.tokens", _STRING, [_string(token) for token in tokens]),
        _array("tokenizer.ggml.scores", _FLOAT32, [struct.pack("<f", 0.0)] * len(tokens)),
        _array("tokenizer.ggml.token_type", _INT32, [struct.pack("<i", kind) for kind in kinds]),
    ]
    shapes = _shapes(len(tokens))
    infos, offset = [], 0
    for name, shape in shapes.items():
        kind = _kind(name, shape)
        infos.append(_tensor_info(name, shape, kind, offset))
        offset += _padded(math.prod(shape) // kind.block_elements * kind.block_bytes)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(values))
    head += b"".join(values) + b"".join(infos)
    return head.ljust(_padded(len(head)), b"\0") + bytes(offset)


class _Kind(NamedTuple):
    """How a tensor is stored: ggml's number for it, and the bytes of a block of elements."""

    number: int
    block_elements: int
    block_bytes: int


_F32 = _Kind(0, 1, 4)
_F16 = _Kind(1, 1, 2)
_LAYER_KINDS = {
    "attn_q": _Kind(2, 32, 18),  # Q4_0
    "attn_k": _Kind(3, 32, 20),  # Q4_1
    "attn_v": _Kind(8, 32, 34),  # Q8_0
    "attn_output": _Kind(12, 256, 144),  # Q4_K
    "ffn_gate": _Kind(13, 256, 176),  # Q5_K
    "ffn_up": _Kind(14, 256, 210),  # Q6_K
    "ffn_down": _Kind(23, 256, 136),  # IQ4_XS
}

_HYPERPARAMETERS = {
    "context_length": 256,
    "embedding_length": _WIDTH,
    "block_count": 1,
    "feed_forward_length": _WIDTH,
    "attention.head_count": 1,
    "attention.head_count_kv": 1,
    "rope.dimension_count": _WIDTH,
}


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a llama model with one layer; a vector is a norm."""
    return {
        "token_embd.weight": (_WIDTH, vocabulary),
        "output_norm.weight": (_WIDTH,),
        "output.weight": (_WIDTH, vocabulary),
        "blk.0.attn_norm.weight": (_WIDTH,),
        "blk.0.ffn_norm.weight": (_WIDTH,),
        **{f"blk.0.{name}.weight": (_WIDTH, _WIDTH) for name in _LAYER_KINDS},
    }


def _kind(name: str, shape: tuple[int, ...]) -> _Kind:
    """Return how a tensor is stored: norms as floats, embeddings as half floats."""
    if len(shape) == 1:
        return _F32
    return _LAYER_KINDS.get(name.removeprefix("blk.0.").removesuffix(".weight"), _F16)


def _tensor_info(name: str, shape: tuple[int, ...], kind: _Kind, offset: int) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _string(name) + sizes + struct.pack("<IQ", kind.number, offset)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _entry(key: str, kind: int, value: bytes) -> bytes:
    return _string(key) + struct.pack("<I", kind) + value


def _text(key: str, value: str) -> bytes:
    return _entry(key, _STRING, _string(value))


def _number(key: str, value: int) -> bytes:
    return _entry(key, _UINT32, struct.pack("<I", value))


def _array(key: str, kind: int, elements: list[bytes]) -> bytes:
    return _entry(key, _ARRAY, struct.pack("<IQ", kind, len(elements)) + b"".join(elements))


def _padded(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT
