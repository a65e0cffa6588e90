"""A log without what would tell whose it is, for a bug report: `ctl export --scrub`.

Names, addresses, identities and arguments become pseudonyms, the same one for the same thing all
through the file, so that the result folds and verifies as the log did. What is free text is
removed, except where it is llmgw's own and then with the names in it replaced. A field that this
module has no rule for is removed too: new ones are hidden until somebody decides otherwise.
Numbers, times, classes and products of hardware, versions and llmgw's own words stay.

A log is read twice: `learn` everything, then `scrub` it message by message.
"""

from __future__ import annotations

import re
import typing
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from llmgw import wire
from llmgw.catalog.entries import Catalog, Labels
from llmgw.catalog.problems import problems
from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.core.records import NewerVersion, Record, UnknownType, Unreadable
from llmgw.engines.devices import DEVICE_VARIABLES
from llmgw.engines.registry import ENGINES
from llmgw.errors import MalformedRecord
from llmgw.hardware.types import local_domain, spans_nodes
from llmgw.log.base import Message

CLUSTER = "scrubbed"
REMOVED = "[removed]"

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z")
_VERSION = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,3}(?:[.+-]?(?:a|b|rc|dev|post)[0-9]{1,4})?")
_REPLICA = re.compile(r"r[0-9]{1,15}")
_WORD = re.compile(r"[a-z]{1,24}(?:[-_][a-z0-9]{1,24}){0,3}")
_OF_HARDWARE = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9 .+*?:,()/_-]{0,79}")
_OWN_REASONS = re.compile(
    r"exit code -?\d+|signal \d+|not wanted any more|the machine restarted|its entry changed"
    r"|a restart was asked for|its group starts again|something else is wanted in its place"
    r"|its model left the catalog|more than the \d+ wanted"
    r"|it stands in the way of the changed entry"
)
_WITHOUT_NAMES = re.compile(
    r"too small by [\d.]+ GiB|in use|node lost|no device of class .+|on a node with \d+ replicas"
    r"|fewer than \d+ free (?:together|in one NVLink domain)|more than the \d+ wanted"
    r"|on fewer than \d+ nodes (?:of one NVLink fabric )?with \d+ free together"
    r"|no NVLink domain has so many free cards: the group speaks over PCIe"
    r"|the group speaks over PCIe: the entry ignores NVLink"
    r"|all that is better fits nothing: a device that is better avoided"
    r"|(?:a MIG instance|the processor) cannot be part of a group|its node is drained"
    r"|node (?:stopped|cordoned|being drained|name used by two agents|without inventory)"
    r"|node of unreadable hardware|occupied by an engine that is being stopped|memory unknown"
    r"|it stands in the way of the changed entry|its entry changed|its model left the catalog"
    r"|its device (?:cpu|[\d/mig]+)(?:, [\d/mig]+)* is not there any more"
)
_WITH_NAMES = [
    re.compile(sentence)
    for sentence in (
        r"(?P<node>[^\s:]+)(?P<rest>: .+ of class .+ \(asked: .+\))",
        r"(?P<begin>one NVLink (?:domain|fabric over the nodes): )(?P<domain>.+)",
        r"(?P<begin>\d+ more of )(?P<model>\S+)(?P<rest> on the node: no other has fewer)",
        r"(?P<begin>without the label )(?P<label>[^=\s]+)(?P<equals>=)(?P<pattern>\S+)",
        r"(?P<model>\S+)(?P<rest> of priority -?\d+ needs its place)",
        r"(?P<begin>it failed \d+ times, and )(?P<node>\S+)(?P<rest> (?:cpu|[\d/mig]+) is [a-z-]+)",
    )
]
_KNOWN_TEXTS = {
    text
    for engine in ENGINES.values()
    for failure in engine.failures
    for text in (failure.meaning, failure.advice)
}

Rule = Callable[["Scrubber", Any], Any]


class Scrubber:
    """Learns a log and then gives it back with other names."""

    def __init__(self) -> None:
        self._learning = True
        self._known: dict[str, dict[str, str]] = {}
        self._patterns: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._in_texts = re.compile(r"(?!)")
        self._verdicts: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    # --- the two readings --------------------------------------------------------------------

    def learn(self, message: Message) -> None:
        """Take note of the names in a message."""
        self._scrubbed(self._decoded(message))

    def settle(self) -> None:
        """All is learnt: give out the names that stand in texts, in the order of the old ones."""
        self._learning = False
        for kind, names in self._known.items():
            self._known[kind] = {}
            for name in sorted(names):
                self.named(kind, name)
        for number, pattern in enumerate(sorted(self._patterns), start=1):
            self._patterns[pattern] = f"*.p{number}.*"
        for kind in ("node", "model", "domain"):
            self._texts |= self._known.get(kind, {})
        longest_first = sorted(self._texts, key=len, reverse=True)
        if longest_first:
            either = "|".join(map(re.escape, longest_first))
            self._in_texts = re.compile(rf"(?<![\w.-])(?:{either})(?![\w-])")

    def scrub(self, message: Message) -> Message:
        """Return a message as it may be shown to anybody. Call `settle` before."""
        record = self._decoded(message)
        subject, payload = self._written(self._scrubbed(record), message)
        return Message(message.sequence, message.time_ns, subject, payload)

    @staticmethod
    def _decoded(message: Message) -> Record:
        return wire.decode(message.sequence, message.time_ns, message.subject, message.payload)

    def _scrubbed(self, record: Record) -> Record:
        body: Any = record.body
        node = self.named("node", record.node) if record.node else ""
        session = self.named("session", record.session) if record.session else ""
        if isinstance(body, e.CatalogApplied):
            body = self._catalog_applied(body, record.sequence)
        elif isinstance(body, e.CatalogRejected):
            body = self._catalog_rejected(body)
        elif isinstance(body, e.Event | SetAssignments):
            body = self.walked(body)
        return replace(record, node=node, session=session, body=body)

    def _written(self, record: Record, message: Message) -> tuple[str, bytes]:
        """Return the subject and payload of a scrubbed record."""
        body = record.body
        if isinstance(body, Unreadable):
            return self._subject(record, message), b"{}"
        if isinstance(body, UnknownType | NewerVersion):
            return self._subject(record, message), self._shell(record, message)
        time = _time_of(message)
        try:
            if isinstance(body, SetAssignments):
                body = replace(body, node=record.node) if not body.node else body
                written = wire.encode_command(CLUSTER, body, time=time)
                return wire.command_subject(CLUSTER, record.node), written.payload
            written = wire.encode_event(
                CLUSTER,
                body,
                node=record.node,
                session=record.session,
                number=record.number,
                time=time,
            )
        except MalformedRecord:  # longer than it was: what is left of it is that it was there
            return self._subject(record, message), b"{}"
        return written.subject, written.payload

    def _subject(self, record: Record, message: Message) -> str:
        """Return the subject of what cannot be read as something."""
        route = wire.route_of(message.subject)
        if route is None:
            return f"{wire.prefix(CLUSTER)}.event.unknown"
        if route.origin == "command":
            return wire.command_subject(CLUSTER, record.node)
        known = route.wire in e.EVENTS
        kind = route.wire if known else self.named("unknown", route.wire)
        writer = f"node.{record.node}" if route.origin == "node" else route.origin
        return f"{wire.prefix(CLUSTER)}.event.{writer}.{kind}"

    def _shell(self, record: Record, message: Message) -> bytes:
        """Return an envelope that says of which version it is, and nothing else."""
        body = record.body
        route = wire.route_of(self._subject(record, message))
        return msgspec.json.encode(
            wire.Envelope(
                type=route.type if route is not None else "",
                id="removed",
                source=route.source if route is not None else "",
                time=_time_of(message),
                dataversion=body.version if isinstance(body, NewerVersion) else 1,
                session="",
                number=0,
                data={},
            )
        )

    # --- catalogs: what was valid stays so, and what was not ------------------------------------

    def _catalog_applied(self, body: e.CatalogApplied, sequence: int) -> e.CatalogApplied:
        catalog: Catalog = self.walked(body.catalog)
        if self._learning:
            return body
        before, after = problems(body.catalog), problems(catalog)
        if before and not after and catalog.models:
            # What was wrong is hidden now: something has to be, for it was rejected.
            first = replace(catalog.models[0], memory_bytes=0)
            catalog = replace(catalog, models=(first, *catalog.models[1:]))
            after = problems(catalog)
        self._verdicts[sequence] = (tuple(before), tuple(after))
        self._verdicts = {n: v for n, v in self._verdicts.items() if n > sequence - 100_000}
        return replace(body, catalog=catalog, file=None)

    def _catalog_rejected(self, body: e.CatalogRejected) -> e.CatalogRejected:
        before, after = self._verdicts.get(body.request, ((), ()))
        if before and body.reasons == before:
            return replace(body, reasons=after)
        return replace(body, reasons=tuple(REMOVED for _ in body.reasons))

    # --- values ------------------------------------------------------------------------------

    def walked(self, value: Any) -> Any:  # noqa: ANN401 -- anything that a record holds
        """Return a structure with every field treated by its rule."""
        kind = type(value)
        changes = {}
        for field in value.__struct_fields__:
            found = getattr(value, field)
            treated = self._treated(kind, field, found)
            if treated is not found:
                changes[field] = treated
        return replace(value, **changes) if changes else value

    def _treated(self, kind: Any, field: str, found: Any) -> Any:  # noqa: ANN401
        if found is None or isinstance(found, int | float):
            return found
        rule = RULES.get(f"{kind.__name__}.{field}") or RULES.get(field)
        if rule is not None:
            return rule(self, found)
        if isinstance(found, msgspec.Struct):
            return self.walked(found)
        if isinstance(found, tuple | list) and all(isinstance(x, msgspec.Struct) for x in found):
            return type(found)(self.walked(one) for one in found)
        if isinstance(found, tuple | list) and all(isinstance(x, int | float) for x in found):
            return found
        if isinstance(found, str) and (not found or _is_literal(kind, field)):
            return found
        return _removed(found)

    def named(self, kind: str, name: str) -> str:
        """Return the pseudonym of a name; while learning the name itself."""
        names = self._known.setdefault(kind, {})
        if name not in names:
            names[name] = name if self._learning else _PSEUDONYMS[kind](len(names) + 1, name)
        return names[name]

    def said(self, text: str) -> str:
        """Return a text of llmgw's with the names in it replaced.

        Where a name stands in the sentences that placement makes is known, so that a model that
        is called "one" is told from the word. In any other every name is replaced.
        """
        if _WITHOUT_NAMES.fullmatch(text):
            return text
        for sentence in _WITH_NAMES:
            if found := sentence.fullmatch(text):
                return "".join(self._part(*part) for part in found.groupdict().items())
        return self._in_texts.sub(lambda found: self._texts[found[0]], text)

    def _part(self, kind: str, text: str) -> str:
        if kind == "pattern":
            return self._patterns.get(text, REMOVED)
        return self.named(kind, text) if kind in _PSEUDONYMS else text

    def pattern(self, pattern: str) -> str:
        """Return the pseudonym of what a label must match. It matches what the other did."""
        return self._patterns.setdefault(pattern, pattern)

    def label_value(self, value: str) -> str:
        """Return the pseudonym of a label's value: it says which patterns match it."""
        number = self.named("value", value)
        matching = [new for old, new in self._patterns.items() if fnmatchcase(value, old)]
        marks = "".join(f"{new[2:-2]}." for new in matching if not self._learning)
        return f"{number}.{marks}"


async def scrubbed(
    learnt: AsyncIterator[Sequence[Message]], again: Callable[[], AsyncIterator[Sequence[Message]]]
) -> AsyncIterator[list[Message]]:
    """Yield the messages of a log scrubbed; `again` gives the same messages as `learnt`."""
    scrubber = Scrubber()
    async for batch in learnt:
        for message in batch:
            scrubber.learn(message)
    scrubber.settle()
    async for batch in again():
        yield [scrubber.scrub(message) for message in batch]


def _time_of(message: Message) -> str:
    with_time = re.search(rb'"time":"([^"]{1,40})"', message.payload)
    text = with_time[1].decode(errors="replace") if with_time else ""
    return text if _TIME.fullmatch(text) else "1970-01-01T00:00:00Z"


def _removed(found: Any) -> Any:  # noqa: ANN401
    """Return what is left of a value that nobody has a rule for."""
    if isinstance(found, str):
        return REMOVED
    if isinstance(found, Mapping):
        return {}
    return type(found)()


@cache
def _is_literal(kind: type, field: str) -> bool:
    """Return whether a field can hold one of a few words of llmgw's only."""
    hint = typing.get_type_hints(kind).get(field)
    options = [hint, *typing.get_args(hint)]
    return any(typing.get_origin(option) is Literal for option in options)


# --- pseudonyms ----------------------------------------------------------------------------------


def _identity(number: int, name: str) -> str:
    prefix = name.partition("-")[0]
    known = prefix if prefix in ("GPU", "MIG", "CPU") else "ID"
    return f"{known}-00000000-0000-0000-0000-{number:012x}"


def _address(number: int, _: str) -> str:
    """An address of the range that RFC 2544 keeps for tests."""
    return f"198.18.{number >> 8 & 255}.{number & 255}"


def _source(number: int, name: str) -> str:
    suffix = ".gguf" if name.lower().endswith(".gguf") else ""
    if name.startswith("/"):
        return f"/scrubbed/source-{number}{suffix}"
    return f"scrubbed/source-{number}{suffix}"


def _plainly(word: str) -> Callable[[int, str], str]:
    return lambda number, _: f"{word}-{number}"


def _domain(number: int, name: str) -> str:
    """Of a node or of a fabric: a group over several nodes needs one of the latter."""
    return f"domain-{number}" if spans_nodes(name) else local_domain(f"domain-{number}", 0)


_PSEUDONYMS: Mapping[str, Callable[[int, str], str]] = {
    "id": _identity,
    "address": _address,
    "source": _source,
    "variable": lambda number, _: f"VARIABLE_{number}",
    "path": lambda number, _: f"/path-{number}",
    "domain": _domain,
    "value": lambda number, _: f"v{number}",
    **{
        kind: _plainly(kind)
        for kind in ("node", "model", "session", "boot", "holder", "label", "unknown")
    },
    **{kind: _plainly(kind) for kind in ("argument", "word", "engine", "replica", "setting")},
}


# --- rules ---------------------------------------------------------------------------------------


def _as(kind: str) -> Rule:
    return lambda scrubber, found: scrubber.named(kind, found)


def _kept(form: re.Pattern[str], kind: str = "word") -> Rule:
    """Keep what has this form, which is that of llmgw's or the hardware's own words."""

    def rule(scrubber: Scrubber, found: Any) -> Any:  # noqa: ANN401
        if isinstance(found, tuple):
            return tuple(rule(scrubber, one) for one in found)
        return found if form.fullmatch(found) else scrubber.named(kind, found)

    return rule


def _says(scrubber: Scrubber, found: Any) -> Any:  # noqa: ANN401
    """Replace the names in texts that llmgw made."""
    if isinstance(found, str):
        return scrubber.said(found)
    if isinstance(found, Mapping):
        return {scrubber.said(text): count for text, count in found.items()}
    return tuple(scrubber.said(text) for text in found)


def _reason(_: Scrubber, found: str) -> str:
    return found if _OWN_REASONS.fullmatch(found) else REMOVED


def _meaning(_: Scrubber, found: str) -> str:
    return found if found in _KNOWN_TEXTS else REMOVED


def _output(_: Scrubber, found: str) -> str:
    return f"[{len(found.splitlines())} lines removed]" if found else found


def _engine(scrubber: Scrubber, found: str) -> str:
    return found if found in ENGINES else scrubber.named("engine", found)


def _arguments(scrubber: Scrubber, found: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_argument(scrubber, word) for word in found)


def _argument(scrubber: Scrubber, word: str) -> str:
    """Keep the name of a flag only if llmgw itself knows it, and what it is given never."""
    flag, equals, value = word.partition("=")
    if any(flag in engine.reserved_args for engine in ENGINES.values()):
        return f"{flag}={scrubber.named('argument', value)}" if equals else flag
    place = "{port}" if "{port}" in word else ""
    dashes = "--" if word.startswith("-") else ""
    return f"{dashes}{scrubber.named('argument', word)}{place}"


def _environment(scrubber: Scrubber, found: Mapping[str, str]) -> dict[str, str]:
    return {
        name if name in DEVICE_VARIABLES else scrubber.named("variable", name): scrubber.named(
            "setting", value
        )
        for name, value in found.items()
    }


def _node_labels(scrubber: Scrubber, found: Mapping[str, str]) -> dict[str, str]:
    return {
        scrubber.named("label", name): scrubber.label_value(value) for name, value in found.items()
    }


def _entry_labels(scrubber: Scrubber, found: Labels) -> Labels:
    return Labels(
        **{
            kind: {
                scrubber.named("label", name): scrubber.pattern(pattern)
                for name, pattern in getattr(found, kind).items()
            }
            for kind in Labels.__struct_fields__
        }
    )


def _pool(scrubber: Scrubber, found: str) -> str:
    """A pool that several devices draw on is named by card and instance, or is a device's own."""
    return found if re.fullmatch(r"\d{1,4}/gi\d{1,4}", found) else scrubber.named("id", found)


def _leader(scrubber: Scrubber, found: str | None) -> str | None:
    """Where the parts of a replica meet: the address of a node, and a port."""
    if found is None:
        return None
    address, _, port = found.rpartition(":")
    if not port.isdecimal():
        return scrubber.named("address", found)
    return f"{scrubber.named('address', address)}:{port}"


def _absent(*_: object) -> None:
    return None


_hardware = _kept(_OF_HARDWARE)

RULES: Mapping[str, Rule] = {
    "node": _as("node"),
    "model": _as("model"),
    "Entry.name": _as("model"),
    "replica": _kept(_REPLICA, "replica"),
    "address": _as("address"),
    "Assignment.leader": _leader,
    "boot_id": _as("boot"),
    "holder": _as("holder"),
    "uuid": _as("id"),
    "cluster_uuid": _as("id"),
    "memory_pool": _pool,
    "nvlink_domain": _as("domain"),
    "source": _as("source"),
    "Entry.revision": _as("word"),
    "args": _arguments,
    "command": _arguments,
    "env": _environment,
    "health_path": _as("path"),
    "NodeStarted.labels": _node_labels,
    "Entry.labels": _entry_labels,
    "engine": _engine,
    "agent_version": _kept(_VERSION),
    "driver_version": _kept(_VERSION),
    "cuda_version": _kept(_VERSION),
    "backend": _kept(_WORD),
    "Condition.name": _kept(_WORD),
    "Excluded.reason": _kept(_WORD),
    "cache_key_dtype": _kept(_WORD),
    "cache_value_dtype": _kept(_WORD),
    "device_class": _hardware,
    "classes": _hardware,
    "Card.name": _hardware,
    "profile": _hardware,
    "label": _hardware,
    "pci": _hardware,
    "cpu_affinity": _hardware,
    "compute_mode": _hardware,
    "recovery_action": _hardware,
    "throttled_by": _hardware,
    "Fabric.state": _hardware,
    "Process.name": _absent,
    "ReplicaAssigned.reasons": _says,
    "ReplicaAssigned.refusals": _says,
    "ReplicaAssigned.score": _says,
    "ModelLeftUnplaced.refusals": _says,
    "ReplicaRetired.reason": _says,
    "reason": _reason,
    "meaning": _meaning,
    "advice": _meaning,
    "output": _output,
}
"""What is done with a field, by its name or by type and name. What has no rule is removed."""
