"""Writers of small model files for tests: GGUF and safetensors headers, honest or lying."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

F16, Q8_0, F32 = 1, 8, 0
_BYTES = {F32: 4.0, F16: 2.0, Q8_0: 34 / 32}


def text(value: str) -> bytes:
    """Return a GGUF string."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(of: Any) -> bytes:  # noqa: ANN401 -- whatever a key may hold
    """Return a typed GGUF value: whole numbers as 32 bits, lists of them as arrays."""
    match of:
        case bool():
            return struct.pack("<I?", 7, of)
        case int():
            return struct.pack("<II", 4, of)
        case float():
            return struct.pack("<If", 6, of)
        case str():
            return struct.pack("<I", 8) + text(of)
        case list():
            kinds = {bool: (7, "<?"), int: (4, "<I")}
            if of and isinstance(of[0], str):
                return struct.pack("<IIQ", 9, 8, len(of)) + b"".join(map(text, of))
            kind, form = kinds[type(of[0]) if of else int]
            return struct.pack("<IIQ", 9, kind, len(of)) + b"".join(
                struct.pack(form, x) for x in of
            )
    raise TypeError(of)


def gguf(
    keys: Mapping[str, Any],
    tensors: Mapping[str, tuple[Sequence[int], int]] | None = None,
    *,
    version: int = 3,
    data: bool = True,
) -> bytes:
    """Return a GGUF file. `tensors` maps names to shapes (as ggml has them) and types."""
    tensors = {"token_embd.weight": ((32, 4), F16)} if tensors is None else tensors
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    out += b"".join(text(name) + value(of) for name, of in keys.items())
    offset = 0
    for name, (shape, kind) in tensors.items():
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", kind, offset)
        offset += -(-tensor_bytes(shape, kind) // 32) * 32
    out += b"\0" * (-len(out) % 32)
    return out + (b"\0" * offset if data else b"")


def tensor_bytes(shape: Sequence[int], kind: int) -> int:
    """Return what a tensor takes."""
    size = _BYTES[kind]
    for length in shape:
        size *= length
    return int(size)


def model_keys(architecture: str = "llama", **values: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the keys of a small model; `__` in a name stands for a dot, `None` leaves one out."""
    given = {
        "context_length": 4096,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 128,
        "attention__head_count": 4,
        "attention__head_count_kv": 2,
    } | values
    keys = {f"{architecture}.{name.replace('__', '.')}": of for name, of in given.items()}
    kept = {name: of for name, of in keys.items() if of is not None}
    return {"general.architecture": architecture} | kept


def layer_tensors(count: int = 2) -> dict[str, tuple[Sequence[int], int]]:
    """Return the tensors of a small model: two kilobytes for each layer."""
    found: dict[str, tuple[Sequence[int], int]] = {"token_embd.weight": ((64, 100), F16)}
    for number in range(count):
        found[f"blk.{number}.attn_q.weight"] = ((64, 16), F16)
    return found | {"output_norm.weight": ((64,), F32)}


def safetensors(tensors: Mapping[str, tuple[str, Sequence[int], int]]) -> bytes:
    """Return a safetensors file. `tensors` maps names to type, shape and bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\0" * offset


def checkpoint(folder: Path, config: Mapping[str, Any], shards: int = 2) -> int:
    """Write a Hugging Face folder of shards with their index, and return the bytes of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weight_map: dict[str, str] = {}
    total = 0
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        tensors = {f"model.layers.{number}.mlp.up_proj.weight": ("BF16", (8, 16), 256)}
        if number == 0:
            tensors["model.embed_tokens.weight"] = ("BF16", (100, 8), 1600)
            tensors["lm_head.weight"] = ("BF16", (100, 8), 1600)
        (folder / name).write_bytes(safetensors(tensors))
        weight_map |= dict.fromkeys(tensors, name)
        total += sum(size for _, _, size in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


SMALL_CONFIG: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}
