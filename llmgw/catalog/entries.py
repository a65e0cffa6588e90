"""A catalog entry: one model that the operator wants served.

Entries are what the log carries: validated, with sizes in bytes and paths made absolute. Reading
them from YAML, with line numbers for every mistake, is the business of `llmgw.catalog.load`.
"""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One model of the catalog.

    `classes` are device classes in order of preference and may hold `*` (`h100-*`).
    `memory_bytes` is what one replica needs on each of its devices. `source` is a GGUF file, a
    Hugging Face folder or a repository id; the engine `command` has `command` instead.
    `start_seconds` is how long loading may take before it counts as failed.
    """

    name: str
    engine: str
    classes: tuple[str, ...] = msgspec.field(name="class")
    memory_bytes: int
    source: str | None = None
    revision: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    context: int | None = None
    parallel: int | None = None
    replicas: int = 1
    gpus: int = 1
    tp: int = 1
    pp: int = 1
    nodes: int = 1
    health_path: str | None = None
    start_seconds: float = 600.0
    stop_seconds: float = 15.0


class Catalog(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All models that are wanted, in the order of the file."""

    models: tuple[Entry, ...] = ()
