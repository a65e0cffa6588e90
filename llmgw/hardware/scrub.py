"""Takes out of what the driver says everything that tells whose machine it is, and counts it.

Pure; `captures` calls it. UUIDs and PCI addresses stay, since the outputs are joined by them. What
has a field of its own goes by the field's name; names of hosts and users, addresses and folders of
users go wherever they stand, but for the names of fields and what names a product.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from llmgw.hardware.nvml_record import Calls, Record

REMOVED = "removed"
LEAST_NAME = 3
_KEPT_VALUES = frozenset({"", "N/A", "None", "[N/A]", "Not Found", REMOVED})
# Words of the driver's own: a host that is called so tells nothing, and its name is everywhere.
_COMMON = frozenset(
    {
        *("admin", "compute", "cuda", "default", "disabled", "driver", "enabled", "gpu", "gpus"),
        *("graphics", "host", "local", "localhost", "machine", "node", "none", "nvidia", "nvlink"),
        *("root", "server", "tesla", "ubuntu", "user", "worker"),
    }
)

_FIELDS = re.compile(
    r"<(?P<tag>(?P<machine>vm_(?:name|id|uuid))"
    r"|(?P<serial>[a-z_]*serial[a-z_]*)"
    r"|(?P<id>pdi|[a-z_]*guid)"
    r"|(?P<host>[a-z_]*host_?name[a-z_]*)"
    r"|(?P<user>[a-z_]*user_?name[a-z_]*))\s*>(?P<value>.*?)(?P<end></(?P=tag)\s*>|\Z)",
    re.DOTALL,
)
_KINDS = {
    "machine": "names of virtual machines",
    "serial": "serial numbers",
    "id": "device identifiers",
    "host": "host names",
    "user": "user names",
}
# The tool does not escape a process's name, so it ends where the fields after it begin.
_PROCESS = re.compile(
    r"<(?P<tag>process_name|command_?line)\s*>(?P<value>.*?)"
    r"(?P<end></(?P=tag)\s*>(?=\s*<(?:used_memory|/process_info))|(?=<used_memory>|</process_info>)"
    r"|\Z)",
    re.DOTALL,
)
_PROCESSES = "process names and command lines"

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
_IN_TEXT = (
    ("network addresses", re.compile(rf"(?<![\w.-])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w-]|\.[0-9])")),
    (
        "network addresses",
        re.compile(r"(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", re.IGNORECASE),
    ),
    (
        "network addresses",  # IPv6: eight groups, or fewer around two colons; no PCI address
        re.compile(
            r"(?<![\w:.])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
            r"|(?:[0-9a-f]{1,4}:){1,6}(?::[0-9a-f]{1,4}){1,6}|::(?:[0-9a-f]{1,4}:){0,5}[0-9a-f]{1,4})"
            r"(?![\w:.])",
            re.IGNORECASE,
        ),
    ),
    ("folders of users", re.compile(r"(?<=/home/)[^/\s<>\"']+|(?<=/Users/)[^/\s<>\"']+")),
)

# What names a product, which an owner's name may be a part of (a user `pro`, and an RTX PRO).
_KEPT_FIELDS = "product_name|product_brand|product_architecture|uuid|driver_version|cuda_version"
_BETWEEN_TAGS = re.compile(
    rf"<(?P<kept>{_KEPT_FIELDS})>[^<>]*</(?P=kept)>|(?:^|(?<=>))[^<>]*[^<>\s][^<>]*"
)
_KEPT_LINE = re.compile(r"\s*(?:GPU [0-9]+: |MIG \S+ +Device +[0-9]+: )")
_KEPT_CALLS = ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo", "nvmlSystemGet")


class Scrubber:
    """Scrubs the texts and records of one machine. `removed` counts what was taken out, by kind."""

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        self.removed: Counter[str] = Counter()
        self._words = [
            (kind, re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"))
            for kind, names in (("host names", hosts), ("user names", users))
            for name in sorted(set(names), key=len, reverse=True)  # the longest form first
            if len(name) >= LEAST_NAME and name.lower() not in _COMMON
        ]

    def report(self, text: str) -> str:
        """An XML report: by fields, and in the text between its tags."""
        text = _PROCESS.sub(self._field(lambda _: _PROCESSES), text)
        text = _FIELDS.sub(self._field(_kind), text)
        return _BETWEEN_TAGS.sub(lambda m: m[0] if m["kept"] else self._words_in(m[0]), text)

    def text(self, text: str) -> str:
        """A text without fields, such as a listing or a message. Lines that list cards stay."""
        lines = text.splitlines(keepends=True)
        return "".join(line if _KEPT_LINE.match(line) else self._words_in(line) for line in lines)

    def _words_in(self, text: str) -> str:
        for kind, pattern in (*self._words, *_IN_TEXT):
            text, count = pattern.subn(REMOVED, text)
            if count:
                self.removed[kind] += count
        return text

    def record(self, record: Record) -> Record:
        """What NVML answered: names of processes go, and texts are scrubbed as texts."""
        return replace(
            record,
            system=self._calls(record.system),
            cards=tuple(
                replace(
                    card,
                    calls=self._calls(card.calls),
                    instances=tuple(replace(i, calls=self._calls(i.calls)) for i in card.instances),
                )
                for card in record.cards
            ),
            pairs=self._calls(record.pairs),
            failure=record.failure and replace(record.failure, said=self.text(record.failure.said)),
        )

    def _calls(self, calls: Calls) -> Calls:
        return {
            name: replace(
                answer, value=self._value(name, answer.value), said=self.text(answer.said)
            )
            for name, answer in calls.items()
        }

    def _value(self, name: str, value: Any) -> Any:  # noqa: ANN401 - whatever a call returns
        if isinstance(value, dict):
            return {key: self._value(key, inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._value(name, inner) for inner in value]
        if not isinstance(value, str) or value in _KEPT_VALUES:
            return value
        kind = _kind_of_call(name)
        if kind is None:
            return value if name.startswith(_KEPT_CALLS) else self._words_in(value)
        self.removed[kind] += 1
        return REMOVED

    def _field(self, kind: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
        def replacement(match: re.Match[str]) -> str:
            value = match["value"].strip()
            if value not in _KEPT_VALUES:
                self.removed[kind(match)] += 1
                value = REMOVED
            return f"<{match['tag']}>{value}{match['end'] or ''}"

        return replacement


def _kind(match: re.Match[str]) -> str:
    return next(said for group, said in _KINDS.items() if match[group])


def _kind_of_call(name: str) -> str | None:
    lowered = name.lower()
    if "processname" in lowered or "commandline" in lowered:
        return _PROCESSES
    if "serial" in lowered:
        return "serial numbers"
    return "host names" if "hostname" in lowered else None
