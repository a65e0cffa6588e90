"""What each setting may be, and how it is read from text or TOML.

Only functions from a value to a checked value; where values come from is llmgw.settings' affair,
and it is the only caller.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from llmgw.core.limits import Limits

NAME_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_-")
"""What a cluster's or node's name may be made of, because it becomes a token of a subject."""


class Kind(NamedTuple):
    """How a value is read, from text or from TOML. `read` raises `ValueError` when it is wrong."""

    read: Callable[[object], object]
    allowed: str


def _text(value: object) -> str:
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError
    return str(value)


def _matching(pattern: str) -> Callable[[object], str]:
    expression = re.compile(pattern)

    def read(value: object) -> str:
        if not expression.fullmatch(_text(value)):
            raise ValueError
        return str(value)

    return read


def _one_of(*choices: str) -> Kind:
    return Kind(_matching("|".join(map(re.escape, choices))), ", ".join(choices))


def _seconds(least: float, most: float) -> Kind:
    return _number(least, most, "seconds")


def _number(least: float, most: float, unit: str) -> Kind:
    def read(value: object) -> float:
        number = float(str(value))
        if not least <= number <= most:
            raise ValueError
        return number

    return Kind(read, f"a number of {unit} from {least:g} to {most:g}")


def _count(least: int, most: int, what: str) -> Kind:
    def read(value: object) -> int:
        count = int(str(value))
        if not least <= count <= most:
            raise ValueError
        return count

    return Kind(read, f"a whole number of {what} from {least} to {most}")


def _switch(value: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    try:
        return words[str(value).lower()]
    except KeyError:
        raise ValueError from None


def _path(value: object) -> Path:
    return Path(_text(value)).expanduser().absolute()


def _program(value: object) -> str:
    text = _text(value)
    return str(Path(text).expanduser()) if "/" in text else text


def _port(text: str, least: int) -> int:
    port = int(text)
    if not least <= port <= 65_535:
        raise ValueError
    return port


def _port_range(value: object) -> str:
    first, last = (_port(text, 1_024) for text in _text(value).split("-"))
    if first > last:
        raise ValueError
    return f"{first}-{last}"


def _host(value: object) -> str:
    text = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", text):
        ip_address(text)
    return text


def _reachable_host(value: object) -> str:
    """Read a host that is one machine's: under "all addresses" nobody reaches an engine."""
    text = _host(value)
    try:
        unspecified = ip_address(text).is_unspecified
    except ValueError:
        unspecified = not text.strip("0.")  # 0 and 0.0 mean 0.0.0.0 too
    if unspecified:
        raise ValueError
    return text


def _host_and_port(value: object) -> str:
    host, _, port = _text(value).rpartition(":")
    _host(host.removeprefix("[").removesuffix("]"))
    return f"{host}:{_port(port, 0)}"


def _servers(value: object) -> str:
    servers = [server.strip() for server in _text(value).split(",")]
    for server in servers:
        parts = urlsplit(server)
        if parts.scheme not in {"nats", "tls"} or not parts.hostname or parts.port == 0:
            raise ValueError
    return ",".join(servers)


def _labels(value: object) -> str:
    """Read labels from text or from a table of TOML, into one spelling."""
    pairs = value.items() if isinstance(value, Mapping) else _pairs(str(value))
    named = {str(name).strip(): str(text).strip() for name, text in pairs}
    for name, text in named.items():
        if not _LABEL_NAME.fullmatch(name) or not _LABEL_VALUE.fullmatch(text):
            raise ValueError
    return ",".join(f"{name}={named[name]}" for name in sorted(named))


def _pairs(text: str) -> list[tuple[str, str]]:
    found = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not all(equals for _, equals, _ in found):
        raise ValueError
    if len({name.strip() for name, _, _ in found}) < len(found):
        raise ValueError
    return [(name, value) for name, _, value in found]


_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")

_NAME = Kind(_matching(r"[A-Za-z0-9_-]{1,63}"), "1 to 63 of A-Z, a-z, 0-9, _ and -")
_PROGRAM = Kind(_program, "a program's name or path")

# What limits of conditions are measured in is the last word of their name.
_UNITS: Mapping[str, Kind] = {
    "celsius": _number(-50, 200, "degrees Celsius"),
    "seconds": _seconds(0, 86_400),
    "percent": _number(1, 100, "per cent"),
    "bytes": _count(0, 1 << 50, "bytes"),
    "errors": _count(0, 1 << 40, "errors"),
    "rows": _count(0, 100_000, "rows"),
    "pages": _count(0, 100_000, "pages"),
}

KINDS: Mapping[str, Kind] = {
    "node": _NAME,
    "data": Kind(_path, "a folder"),
    "nats_url": Kind(_servers, "nats://HOST:PORT (or tls), several with commas between"),
    "cluster": _NAME,
    "log_replicas": _count(1, 5, "NATS servers"),
    "backend": _one_of("auto", "nvml", "nvidia-smi", "cpu"),
    "cpu_device": Kind(_switch, "true or false"),
    "nvidia_smi": _PROGRAM,
    "nvml_library": Kind(_program, "a library's name or path"),
    "llama_server": _PROGRAM,
    "vllm": _PROGRAM,
    "sglang": _PROGRAM,
    "labels": Kind(_labels, "NAME=VALUE, several with commas between, or a table of them"),
    "host": Kind(
        _reachable_host,
        "an IP address or a host name of this machine. Engines are published under it, and nobody"
        " can reach them at 0.0.0.0 or ::, so write the address that clients reach",
    ),
    "port_range": Kind(_port_range, "FIRST-LAST, both from 1024 to 65535"),
    "sample_seconds": _seconds(0.1, 3_600),
    "nvml_sample_seconds": _seconds(0.1, 3_600),
    "rediscover_seconds": _seconds(1, 86_400),
    "process_names": Kind(_switch, "true or false"),
    "failing_after": _count(1, 1_000, "failures"),
    "heartbeat_seconds": _seconds(0.1, 600),
    "node_lost_seconds": _seconds(1, 86_400),
    "lease_seconds": _seconds(0.5, 60),
    "listen": Kind(_host_and_port, "HOST:PORT; port 0 takes a free one"),
    "log_level": _one_of("debug", "info", "warning", "error"),
} | {name: _UNITS[name.rpartition("_")[2]] for name in Limits.__struct_fields__}
