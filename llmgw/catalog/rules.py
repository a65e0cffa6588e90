"""What must hold between the fields of one entry.

Pure. `check` is asked after every field was read by itself; a field that was wrong by itself is
absent from the draft, and rules about it are passed over. Placement refuses again what is
refused here about devices, since hardware changes after a catalog was accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmgw.catalog.report import Report
from llmgw.engines.base import Engine
from llmgw.engines.command import PORT_PLACEHOLDER
from llmgw.engines.devices import DEVICE_VARIABLES
from llmgw.engines.references import REFERENCE
from llmgw.engines.registry import ENGINES
from llmgw.masking import mask_arguments

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""The names that an entry may have: no path, no shell, no upper case."""

MOST_TEXT_BYTES = 12_288
"""What an entry may say in arguments and environment: a command carries many entries at once."""
MOST_REPLICAS = 10_000

_SECRET_WORDS = frozenset(
    {"TOKEN", "TOKENS", "SECRET", "SECRETS", "KEY", "KEYS", "APIKEY", "PASSWORD", "PASSWD"}
    | {"PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "AUTHORIZATION"}
)
_SECRET_VALUE = re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|nvapi-[\w-]{16,})")
_HARMLESS_VALUE = re.compile(r"(?i)\d{0,9}|true|false|none")
_SIZES = ("gpus", "tp", "pp", "nodes")


@dataclass(frozen=True)
class Draft:
    """An entry as far as it was read: good values by field, and the line of every field."""

    line: int
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def engine(self) -> Engine | None:
        """The engine, if the entry names one that exists."""
        return ENGINES.get(self.values.get("engine", ""))

    def problem(self, name: str, message: str, report: Report) -> None:
        """Report `message` about field `name`, at its line or else at the entry's."""
        report.problem(self.lines.get(name, self.line), name, message)


def check(draft: Draft, report: Report) -> None:
    """Report every contradiction in `draft`, and fill in how its devices are split."""
    _check_source(draft, report)
    _check_size(draft, report)
    _check_arguments(draft, report)
    _check_environment(draft, report)
    _check_class(draft, report)
    _check_nodes(draft, report)
    _check_split(draft, report)


def _check_source(draft: Draft, report: Report) -> None:
    engine = draft.engine
    if engine is None:
        return
    brings_own = not engine.programs
    if brings_own and "command" not in draft.lines:
        draft.problem("command", "missing; the engine `command` needs a list of words", report)
    if brings_own and draft.values.get("command") == ():
        draft.problem("command", "is empty; name a program and its arguments", report)
    if brings_own and "source" in draft.lines:
        draft.problem("source", "belongs in `command`: this engine runs what is there", report)
    if not brings_own and "command" in draft.lines:
        draft.problem("command", f"is for the engine `command`, not for {engine.name}", report)
    if not brings_own and "source" not in draft.lines:
        draft.problem("source", "missing; write a path or a repository such as org/model", report)


def _check_size(draft: Draft, report: Report) -> None:
    words = [*draft.values.get("command", ()), *draft.values.get("args", ())]
    for pair in draft.values.get("env", {}).items():
        words += pair
    size = sum(len(word.encode(errors="replace")) + 3 for word in words)
    if size > MOST_TEXT_BYTES:
        said = (
            f"{size} bytes in `command`, `args` and `env`; at most {MOST_TEXT_BYTES} go into the "
            "log: put long values into a file on the nodes and name that"
        )
        draft.problem("args", said, report)
    replicas = draft.values.get("replicas", 1)
    if replicas > MOST_REPLICAS:
        draft.problem("replicas", f"{replicas} are too many; at most {MOST_REPLICAS}", report)


def _check_arguments(draft: Draft, report: Report) -> None:
    engine = draft.engine
    words = (*draft.values.get("command", ()), *draft.values.get("args", ()))
    refused = _check_reserved(draft, report)
    if not refused and _hold_secret(words):
        draft.problem("args", "holds what looks like a secret; use `env` with ${NAME}", report)
    brings_own = engine is not None and not engine.programs
    if words and brings_own and not any(PORT_PLACEHOLDER in word for word in words):
        said = "never names {port}; the program must read LLMGW_PORT to listen where it should"
        report.warn(draft.lines.get("command", draft.line), "command", said)


def _check_reserved(draft: Draft, report: Report) -> bool:
    """Report arguments that llmgw gives itself, and return whether there are any."""
    reserved = draft.engine.reserved_args if draft.engine is not None else {}
    flags = [word.partition("=")[0] for word in draft.values.get("args", ())]
    for flag in flags:
        if flag in reserved:
            draft.problem("args", f"{flag} may not be given: {reserved[flag]}", report)
    return any(flag in reserved for flag in flags)


def _hold_secret(words: Sequence[str]) -> bool:
    """Return whether a word is a secret by its form, or by the flag or name before it."""
    return mask_arguments(words) != [*words] or any(_SECRET_VALUE.search(word) for word in words)


def _check_environment(draft: Draft, report: Report) -> None:
    variables: Mapping[str, str] = draft.values.get("env", {})
    for name, value in variables.items():
        if name in DEVICE_VARIABLES or name.startswith("LLMGW_"):
            draft.problem("env", f"{name} is set by llmgw and may not be given", report)
        elif _is_literal_secret(name, value):
            said = (
                f"{name} holds a secret, and the log keeps a catalog for ever; "
                f'write {name}: "${{{name}}}" and set {name} in the agent\'s environment'
            )
            draft.problem("env", said, report)


def _is_literal_secret(name: str, value: str) -> bool:
    if REFERENCE.search(value) or _HARMLESS_VALUE.fullmatch(value):
        return False
    words = name.upper().split("_")
    named_so = any(word in _SECRET_WORDS or word.endswith(("KEY", "TOKEN")) for word in words)
    return named_so or bool(_SECRET_VALUE.search(value))


def _check_class(draft: Draft, report: Report) -> None:
    classes = draft.values.get("class", ())
    instance = next((one for one in classes if "-mig-" in one), None)
    for name in _SIZES:
        number = draft.values.get(name, 1)
        if number > 1 and instance is not None:
            said = (
                f"{number} does not go with the class {instance}: a process opens one MIG "
                "instance, and instances have no NVLink; use whole cards or write 1"
            )
            draft.problem(name, said, report)
        elif number > 1 and "cpu" in classes:
            said = f"{number} does not go with the class cpu: a node has one processor device"
            draft.problem(name, said, report)


def _check_nodes(draft: Draft, report: Report) -> None:
    nodes, engine = draft.values.get("nodes", 1), draft.engine
    if nodes == 1 or engine is None:
        return
    if not engine.spans_nodes:
        draft.problem("nodes", f"{engine.name} serves a replica on one node only", report)
    elif draft.values.get("pp", 1) % nodes and {"tp", "pp"} & draft.lines.keys():
        said = (
            f"{nodes} nodes share whole pipeline stages, so `pp` must be a multiple of {nodes}, "
            f"not {draft.values.get('pp', 1)}; `tp` stays within a node"
        )
        draft.problem("nodes", said, report)
    elif draft.values.get("gpus", nodes) % nodes:
        draft.problem("nodes", f"`gpus` cannot be shared evenly by {nodes} nodes", report)


def _check_split(draft: Draft, report: Report) -> None:
    """Make `gpus` = `tp` x `pp` hold, from whichever of the three are given."""
    values, engine = draft.values, draft.engine
    if engine is None or not values.keys() >= (set(_SIZES) & draft.lines.keys()):
        return
    if values.keys() & {"tp", "pp"}:
        tp, pp = values.get("tp", 1), values.get("pp", 1)
        if values.setdefault("gpus", tp * pp) != tp * pp:
            said = f"{values['gpus']} is not tp {tp} x pp {pp} = {tp * pp}; leave it out"
            draft.problem("gpus", said, report)
    elif "gpus" in values or values.get("nodes", 1) > 1:
        nodes = values.get("nodes", 1)
        gpus = values.setdefault("gpus", nodes)
        other = "pp" if engine.gpus_mean == "tp" else "tp"
        values |= {engine.gpus_mean: max(1, gpus // nodes), other: nodes}
