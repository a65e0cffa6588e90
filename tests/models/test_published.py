"""Estimates against sizes that others published or measured: within 5 %."""

from __future__ import annotations

import pytest

from llmgw.models.config_model import config_metadata
from llmgw.models.estimate import estimate
from llmgw.models.types import Estimate, Metadata
from tests.models.published import MIB, MODELS, Cache


def metadata(name: str) -> Metadata:
    return config_metadata(name, MODELS[name].config)


def cache_bytes(found: Metadata, tokens: int, parallel: int = 1) -> int:
    made = estimate(found, engine="llama.cpp", context=tokens, parallel=parallel)
    assert isinstance(made, Estimate), made
    return made.part("cache")


def grown_bytes(found: Metadata, tokens: int) -> float:
    """What so many tokens take beyond what one sequence keeps anyhow."""
    step = 256  # llama.cpp's
    if tokens >= step:
        state = sum(layer.conv_elements + layer.state_elements for layer in found.layers)
        return cache_bytes(found, tokens) - 4 * state
    return tokens * (cache_bytes(found, 2 * step) - cache_bytes(found, step)) / step


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_are_what_was_published(name: str) -> None:
    model = MODELS[name]
    known = metadata(name)
    assert known.known
    expected = model.weights_bytes
    if name == "DeepSeek V3":  # its files have one layer more, for drafting: 1 of 59 with experts
        expected -= known.layers[-1].weight_bytes
    assert known.weight_bytes == pytest.approx(expected, rel=0.05), model.weights_source


@pytest.mark.parametrize("name", MODELS)
def test_the_cache_is_what_was_published(name: str) -> None:
    tokens, expected, source = MODELS[name].cache
    assert grown_bytes(metadata(name), tokens) == pytest.approx(expected, rel=0.05), source


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_cache_together_are_within_five_percent(name: str) -> None:
    model = MODELS[name]
    known = metadata(name)
    found = known.weight_bytes + grown_bytes(known, model.cache.tokens)
    assert found == pytest.approx(model.weights_bytes + model.cache.bytes, rel=0.05)


@pytest.mark.parametrize(
    ("parallel", "context", "mebibytes"),
    [(1, 4096, 27), (2, 2048, 42), (4, 1024, 72), (8, 512, 72)],
)
def test_windows_are_kept_for_every_sequence_as_a_real_server_keeps_them(
    parallel: int, context: int, mebibytes: int
) -> None:
    """Measured with llama-server: unslothai/unsloth pull request 5225."""
    assert cache_bytes(metadata("Gemma 3 270M"), context, parallel) == mebibytes * MIB


def test_the_plain_formula_is_far_off_where_the_layers_differ() -> None:
    def plain(name: str) -> float:
        config = MODELS[name].config
        config = config.get("text_config", config)
        heads = config["num_attention_heads"]
        length = config.get("head_dim", config["hidden_size"] // heads)
        layers = config["num_hidden_layers"]
        cache: Cache = MODELS[name].cache
        size: int = 2 * 2 * layers * config["num_key_value_heads"] * length * cache.tokens
        return size / cache.bytes

    assert plain("DeepSeek V3") > 20
    assert plain("Gemma 3 27B") > 4
    assert plain("Jamba v0.1") == pytest.approx(8)
    assert plain("Llama 3.1 8B") == pytest.approx(1, rel=0.01)
