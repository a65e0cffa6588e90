"""How many bytes elements take: of GGUF and safetensors tensors, and of the two halves of a cache.

Pure. A quantised type stores blocks: so many elements in so many bytes, scales included.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple


class Packing(NamedTuple):
    """A way to store elements: `elements` of them take `bytes`."""

    name: str
    elements: int
    bytes: int

    def row_bytes(self, elements: int) -> int:
        """Return the bytes of one row: it begins at a block of its own."""
        return -(-elements // self.elements) * self.bytes


GGML_TYPES: Mapping[int, Packing] = {
    number: Packing(name, elements, size)
    for number, name, elements, size in (
        *((0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20)),
        *((6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 40)),
        *((10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144)),
        *((13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292)),
        *((16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98)),
        *((19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110)),
        *((22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (24, "I8", 1, 1)),
        *((25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8)),
        *((29, "IQ1_M", 256, 56), (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54)),
        *((35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17), (40, "NVFP4", 64, 36)),
        (41, "Q1_0", 128, 18),
    )
}
"""GGUF's tensor types by number. Source: the table of sizes in ggml (`gguf` package, constants).

The numbers that are missing here were withdrawn; a file that has one is refused.
"""

SAFETENSORS_BITS: Mapping[str, int] = (
    {"F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32}
    | {"F16": 16, "BF16": 16, "I16": 16, "U16": 16, "BOOL": 8, "I8": 8, "U8": 8}
    | {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
    | {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
)
"""Bits of one element, by the word in a safetensors header. Source: the format's `Dtype`."""

WEIGHT_BYTES: Mapping[str, Fraction] = (
    {"float32": Fraction(4), "float16": Fraction(2), "bfloat16": Fraction(2)}
    | {"float64": Fraction(8), "float8_e4m3fn": Fraction(1), "float8_e5m2": Fraction(1)}
    | {"fp8": Fraction(1), "int8": Fraction(1)}
)
"""Bytes of one weight by the word in `torch_dtype` of a `config.json`."""

_HALF = {"f16": (1, 2), "float16": (1, 2), "fp16": (1, 2), "half": (1, 2)}
_PLAIN = {"bf16": (1, 2), "bfloat16": (1, 2), "f32": (1, 4), "float32": (1, 4), "fp32": (1, 4)}
_ONE_BYTE = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "float8_e4m3fn", "float8_e5m2", "int8")
_EIGHT = dict.fromkeys(_ONE_BYTE, (1, 1))
_BLOCKS = {"q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20), "iq4_nl": (32, 18)} | {
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "nvfp4": (16, 9),
    "fp4_e2m1": (16, 9),
}

CACHE_TYPES: Mapping[str, Packing] = {
    name: Packing(name, *sizes) for name, sizes in (_HALF | _PLAIN | _EIGHT | _BLOCKS).items()
}
"""What half a cache may be kept in, in the words of any engine, with its scales.

Sources: llama.cpp's `--cache-type-k`, whose types are ggml's; vLLM's `--kv-cache-dtype`, whose
`nvfp4` has one scale byte for 16 elements; SGLang's `--kv-cache-dtype`.
"""


def cache_type(name: str) -> Packing | None:
    """Return how a cache of type `name` is stored, or `None` where the type is not known."""
    return CACHE_TYPES.get(name.lower())
