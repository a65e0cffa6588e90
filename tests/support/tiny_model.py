"""Models of under half a megabyte whose answer names them: as a GGUF and as a folder.

It is a real llama-architecture model that runs the whole path of a server (tokeniser, chat
template, attention, KV cache, sampler), so it is not a fake; but its weights are a table. The
attention and feed-forward weights are zero, the embedding of token t is the unit vector t, and
the output matrix maps it to the one token that follows. Every answer is therefore the sentence
` I am NAME, word1 word2 …`, whatever was asked and at any temperature. Tests that need to see
which model answered write one per name. The folder is what Hugging Face's libraries read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, LlamaFileType, TokenType

_CONTEXT = 4096
_FEED_FORWARD = 32
_HEAD_DIMENSION = 32
_CERTAIN = 64.0
"""The logit of the right token before normalisation, far above the zero of all others."""

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_UNKNOWN, _BEGIN, _END = 0, 1, 2
_ANSWER_MARK = "<|answer|>"
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}" + _ANSWER_MARK + "{% endif %}"
)


def write_tiny_model(path: Path, name: str = "tiny-a", words: int = 16) -> Path:
    """Write to `path` a model that answers ` I am NAME, word1 … wordN`, and return `path`.

    The answer ends by itself after `words` words; a request may cut it short with `max_tokens`.
    """
    sentence = _sentence(name, words)
    vocabulary = _vocabulary(sentence)
    size = len(vocabulary)
    width = _width(size)
    follows = _follows(size, len(sentence))
    writer = GGUFWriter(path, "llama")
    _write_metadata(writer, name, width)
    _write_tokenizer(writer, vocabulary)
    for tensor_name, tensor in _tensors(follows, size, width).items():
        writer.add_tensor(tensor_name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_folder(
    folder: Path, name: str = "tiny-a", words: int = 16, *, endless: bool = False
) -> Path:
    """Write the same model as a Hugging Face folder, and return `folder`.

    With `endless` the last word is followed by the first, up to the `max_tokens` of a request.
    """
    sentence = _sentence(name, words)
    special = ("<unk>", "<s>", "</s>", _ANSWER_MARK)
    vocabulary = {word: number for number, word in enumerate((*special, *sentence))}
    size = len(vocabulary)
    width = _width(size)
    follows = _follows(size, len(sentence), endless=endless)
    tensors = {_in_folder(key): value for key, value in _tensors(follows, size, width).items()}
    folder.mkdir(parents=True, exist_ok=True)
    _write_safetensors(folder / "model.safetensors", tensors)
    for file, content in {
        "config.json": _folder_config(size, width),
        "tokenizer.json": _folder_tokenizer(vocabulary, special),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "chat_template": _CHAT_TEMPLATE,
        },
    }.items():
        (folder / file).write_text(json.dumps(content))
    return folder


def answer_of(name: str) -> str:
    """Return the words that an answer of the model called `name` begins with."""
    return f"I am {name}, word1"


def _sentence(name: str, words: int) -> list[str]:
    sentence = ["I", "am", f"{name},", *(f"word{number}" for number in range(1, words + 1))]
    return [_SPACE + word for word in sentence]


def _width(size: int) -> int:
    return -(-size // 32) * 32


def _follows(size: int, words: int, *, endless: bool = False) -> npt.NDArray[np.int64]:
    """Return the token that follows each: the sentence stands last in the vocabulary."""
    first_word = size - words
    follows = np.full(size, first_word)
    follows[first_word:] = np.arange(first_word + 1, size + 1)
    follows[-1] = first_word if endless else _END
    return follows


def _vocabulary(words: list[str]) -> list[tuple[str, TokenType]]:
    special = [
        ("<unk>", TokenType.UNKNOWN),
        ("<s>", TokenType.CONTROL),
        ("</s>", TokenType.CONTROL),
    ]
    every_byte = [(f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)]
    mark = [(_ANSWER_MARK, TokenType.CONTROL)]
    return special + every_byte + mark + [(word, TokenType.NORMAL) for word in words]


def _write_metadata(writer: GGUFWriter, name: str, width: int) -> None:
    writer.add_name(name)
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(_HEAD_DIMENSION)
    writer.add_value_length(_HEAD_DIMENSION)
    writer.add_rope_dimension_count(_HEAD_DIMENSION)
    writer.add_layer_norm_rms_eps(1e-5)


def _write_tokenizer(writer: GGUFWriter, vocabulary: list[tuple[str, TokenType]]) -> None:
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in vocabulary])
    writer.add_token_scores([0.0] * len(vocabulary))
    writer.add_token_types([kind for _, kind in vocabulary])
    writer.add_unk_token_id(_UNKNOWN)
    writer.add_bos_token_id(_BEGIN)
    writer.add_eos_token_id(_END)
    writer.add_add_bos_token(True)
    writer.add_chat_template(_CHAT_TEMPLATE)


def _tensors(
    follows: npt.NDArray[np.int64], size: int, width: int
) -> dict[str, npt.NDArray[np.float16] | npt.NDArray[np.float32]]:
    output = np.zeros((size, width), dtype=np.float16)
    output[follows, np.arange(size)] = _CERTAIN

    def zeros(rows: int, columns: int) -> npt.NDArray[np.float16]:
        return np.zeros((rows, columns), dtype=np.float16)

    ones = np.ones(width, dtype=np.float32)
    return {
        "token_embd.weight": np.eye(size, width, dtype=np.float16),
        "output_norm.weight": ones,
        "output.weight": output,
        "blk.0.attn_norm.weight": ones,
        "blk.0.ffn_norm.weight": ones,
        "blk.0.attn_q.weight": zeros(_HEAD_DIMENSION, width),
        "blk.0.attn_k.weight": zeros(_HEAD_DIMENSION, width),
        "blk.0.attn_v.weight": zeros(_HEAD_DIMENSION, width),
        "blk.0.attn_output.weight": zeros(width, _HEAD_DIMENSION),
        "blk.0.ffn_gate.weight": zeros(_FEED_FORWARD, width),
        "blk.0.ffn_up.weight": zeros(_FEED_FORWARD, width),
        "blk.0.ffn_down.weight": zeros(width, _FEED_FORWARD),
    }


_FOLDER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.0.attn_norm": "model.layers.0.input_layernorm",
    "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
    **{f"blk.0.attn_{x}": f"model.layers.0.self_attn.{x}_proj" for x in "qkv"},
    "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
    **{f"blk.0.ffn_{x}": f"model.layers.0.mlp.{x}_proj" for x in ("gate", "up", "down")},
}


def _in_folder(tensor_name: str) -> str:
    return f"{_FOLDER_NAMES[tensor_name.removesuffix('.weight')]}.weight"


def _folder_config(size: int, width: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": width,
        "intermediate_size": _FEED_FORWARD,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": _HEAD_DIMENSION,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": _CONTEXT,
        "tie_word_embeddings": False,
        "bos_token_id": _BEGIN,
        "eos_token_id": _END,
        "torch_dtype": "float16",
    }


def _folder_tokenizer(vocabulary: Mapping[str, int], special: tuple[str, ...]) -> dict[str, object]:
    space = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "always", "split": True}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[word], "content": word, "special": True, **added} for word in special
        ],
        "normalizer": None,
        "pre_tokenizer": space,
        "post_processor": None,
        "decoder": space,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }


def _write_safetensors(
    path: Path, tensors: Mapping[str, npt.NDArray[np.float16] | npt.NDArray[np.float32]]
) -> None:
    """Write the format: the length of a header in JSON, the header, the bytes of all tensors."""
    header, place = {}, 0
    for name, tensor in tensors.items():
        kind = "F16" if tensor.dtype == np.float16 else "F32"
        offsets = [place, place := place + tensor.nbytes]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    parts = (tensor.tobytes() for tensor in tensors.values())
    path.write_bytes(b"".join((len(text).to_bytes(8, "little"), text, *parts)))
