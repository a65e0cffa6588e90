"""Which nats-servers llmgw trusts: the gate for embedded and external servers alike."""

from __future__ import annotations

import re

from llmgw.errors import LlmgwError

_OLDEST = {(2, 11): 15, (2, 12): 6}
_OLDEST_LINE = min(_OLDEST)


def parse_version(version: str) -> tuple[int, int, int]:
    """Return major, minor and patch; zeros when it does not look like a version."""
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2]), int(match[3])) if match else (0, 0, 0)


def refuse_old_server(version: str, where: str) -> None:
    """Raise `LlmgwError` for a server whose compare-and-set or security is known to be broken."""
    major, minor, patch = parse_version(version)
    line = (major, minor)
    if line < _OLDEST_LINE or patch < _OLDEST.get(line, 0):
        raise LlmgwError(
            f"the nats-server at {where} is version {version}; llmgw needs 2.11.15, 2.12.6 or "
            "newer (older ones lose fenced appends and have open security faults): upgrade it"
        )
