"""A catalog entry: one model that the operator wants served.

Entries are what the log carries: validated, with sizes in bytes and paths made absolute. Reading
them from YAML, with line numbers for every mistake, is the business of `llmgw.catalog.load`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from llmgw.hardware.types import Exact

Policy = Literal["spread", "pack"]
"""`spread` puts replicas of a model on different nodes where it can; `pack` fills nodes up."""

Linking = Literal["require", "prefer", "ignore"]
"""Whether the cards of a group must share one NVLink domain, should, or need not."""


class Labels(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What the labels of a node must be, should be, and should not be: name to value.

    A value may hold `*`.
    """

    require: dict[str, str] = {}
    prefer: dict[str, str] = {}
    avoid: dict[str, str] = {}


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One model of the catalog.

    `classes` are device classes in order of preference and may hold `*` (`h100-*`).
    `memory_bytes` is what one replica needs on each of its devices; `memory_estimated` says that
    it was worked out from the model's metadata and not given. `source` is a GGUF file, a
    Hugging Face folder or a repository id; the engine `command` has `command` instead.
    `start_seconds` is how long loading may take before it counts as failed, `liveness_seconds` how
    long a ready engine's health endpoint may fail, or its requests wait without a step of it,
    before the engine is restarted. `share` allows
    other replicas on the same devices as far as memory goes. `gpu_memory_fraction` is the part of
    a device that the engine takes for itself (vLLM's and SGLang's own setting). Of two entries
    that do not fit both, the one of higher `priority` runs. `cache_key_dtype` and
    `cache_value_dtype` are the halves of the KV cache, in the engine's own words.
    """

    name: str
    engine: str
    classes: tuple[str, ...] = msgspec.field(name="class")
    memory_bytes: Exact
    source: str | None = None
    revision: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    context: Exact | None = None
    parallel: Exact | None = None
    replicas: Exact = 1
    gpus: Exact = 1
    tp: Exact = 1
    pp: Exact = 1
    nodes: Exact = 1
    health_path: str | None = None
    start_seconds: float = 600.0
    stop_seconds: float = 15.0
    liveness_seconds: float | None = None
    policy: Policy = "spread"
    labels: Labels = Labels()
    nvlink: Linking = "prefer"
    share: bool = False
    priority: Exact = 0
    gpu_memory_fraction: float | None = None
    cache_key_dtype: str | None = None
    cache_value_dtype: str | None = None
    memory_estimated: bool = False


class Catalog(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """All models that are wanted, in the order of the file."""

    models: tuple[Entry, ...] = ()
