"""Whatever a configuration or a header claims, it is read, refused or unknown, and never worse."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmgw.errors import ModelUnreadable
from llmgw.models.architectures import KNOWN
from llmgw.models.config_model import config_metadata
from llmgw.models.estimate import estimate
from llmgw.models.gguf_model import KNOWN as KNOWN_GGUF
from llmgw.models.gguf_model import gguf_metadata
from llmgw.models.types import Estimate, TensorInfo, Unknown
from tests.models.files import model_keys
from tests.models.published import MODELS

TENSORS = (TensorInfo("token_embd.weight", (64, 100), "F16", 12_800),)
CONFIGS = [dict(model.config) for model in MODELS.values()]
NAMES = sorted({name for config in CONFIGS for name in config} | {"block_configs", "quant_method"})

numbers = st.one_of(st.integers(-5, 70), st.integers(-(2**70), 2**70), st.floats())
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=6,
)
GGUF_NAMES = (
    *("block_count", "embedding_length", "attention.head_count", "attention.head_count_kv"),
    *("attention.key_length", "attention.sliding_window", "attention.sliding_window_pattern"),
    *("attention.key_length_mla", "ssm.inner_size", "ssm.state_size", "ssm.conv_kernel"),
    *("full_attention_interval", "nextn_predict_layers", "context_length", "vocab_size"),
)


def check(found: Any) -> None:  # noqa: ANN401
    made = estimate(found, engine="vllm", context=1000, tp=2)
    assert isinstance(made, Unknown) or made.total_bytes > 0
    if isinstance(made, Estimate):
        assert all(part.bytes >= 0 for part in made.parts)


@given(
    st.sampled_from(CONFIGS),
    st.dictionaries(st.sampled_from(NAMES), values, max_size=3),
    st.sampled_from([None, *sorted(KNOWN)]),
    st.sampled_from([(), TENSORS]),
)
def test_any_configuration(
    config: dict[str, Any],
    changes: dict[str, Any],
    kind: str | None,
    tensors: tuple[TensorInfo, ...],
) -> None:
    changed = config | changes | ({} if kind is None else {"model_type": kind})
    try:
        check(config_metadata("config.json", changed, tensors))
    except ModelUnreadable as error:
        assert "config.json" in str(error)


@given(
    st.sampled_from(sorted(KNOWN_GGUF | {"brand-new", "clip", "t5"})),
    st.dictionaries(st.sampled_from(GGUF_NAMES), values, max_size=4),
)
def test_any_keys(architecture: str, changes: dict[str, Any]) -> None:
    keys = model_keys(architecture) | {f"{architecture}.{name}": of for name, of in changes.items()}
    try:
        check(gguf_metadata("m.gguf", keys, {}, TENSORS))
    except ModelUnreadable as error:
        assert "m.gguf" in str(error)
