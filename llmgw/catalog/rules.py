"""What must hold between the fields of one entry: its source, words and secrets, and all else.

Pure. `check` is asked after every field was read by itself; a field that was wrong by itself is
absent from the draft, and rules about it are passed over. What concerns devices is in
`device_rules`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from llmgw.catalog import device_rules
from llmgw.catalog.draft import Draft, ModelFacts
from llmgw.catalog.report import Report
from llmgw.engines.command import PORT_PLACEHOLDER
from llmgw.engines.devices import DEVICE_VARIABLES
from llmgw.engines.references import REFERENCE
from llmgw.masking import mask_arguments

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""The names that an entry may have: no path, no shell, no upper case."""

MOST_TEXT_BYTES = 12_288
"""What an entry may say in arguments and environment: a command carries many entries at once."""
MOST_REPLICAS = 10_000
MOST_PRIORITY = 1_000

_SECRET_WORDS = frozenset(
    {"TOKEN", "TOKENS", "SECRET", "SECRETS", "KEY", "KEYS", "APIKEY", "PASSWORD", "PASSWD"}
    | {"PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "AUTHORIZATION"}
)
_SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|nvapi-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,999}\.eyJ[\w-]{10,999}\.)|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_HARMLESS_VALUE = re.compile(r"(?i)\d{0,9}|true|false|none")


def check(draft: Draft, facts: ModelFacts, report: Report) -> None:
    """Report every contradiction in `draft`, whose devices `device_rules.split` has filled in."""
    _check_source(draft, report)
    _check_size(draft, report)
    _check_arguments(draft, report)
    _check_environment(draft, report)
    device_rules.check(draft, facts, report)


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
    priority = draft.values.get("priority", 0)
    if abs(priority) > MOST_PRIORITY:
        said = f"{priority} is out of range: -{MOST_PRIORITY} to {MOST_PRIORITY}, higher goes first"
        draft.problem("priority", said, report)


def _check_arguments(draft: Draft, report: Report) -> None:
    engine = draft.engine
    words = (*draft.values.get("command", ()), *draft.values.get("args", ()))
    refused = _check_reserved(draft, report)
    if not refused and _hold_secret(words):
        said = "holds what looks like a secret; give it in `env`, as {from_env: NAME}"
        draft.problem("args", said, report)
    brings_own = engine is not None and not engine.programs
    if words and brings_own and not any(PORT_PLACEHOLDER in word for word in words):
        said = "never names {port}; the program must read LLMGW_PORT to listen where it should"
        draft.warn("command", said, report)


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
                f"{name} holds a secret, and the log keeps a catalog for ever; write "
                f"{name}: {{from_env: {name}}} and set {name} in the agent's environment, or "
                f"{name}: {{from_file: /path/on/the/node}}"
            )
            draft.problem("env", said, report)


def _is_literal_secret(name: str, value: str) -> bool:
    if REFERENCE.search(value) or _HARMLESS_VALUE.fullmatch(value):
        return False
    words = name.upper().split("_")
    named_so = any(word in _SECRET_WORDS or word.endswith(("KEY", "TOKEN")) for word in words)
    return named_so or bool(_SECRET_VALUE.search(value))
