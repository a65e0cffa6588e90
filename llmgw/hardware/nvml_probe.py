"""Asks NVML everything that discovery needs, call by call, and prints the answers as JSON.

Run by `nvml` as a short program of its own (`python -P nvml_probe.py LIBRARY`): NVML keeps its list
of MIG instances for as long as it is initialised, an open session keeps an administrator from
carving and resetting cards, and a broken driver may hang or crash whoever asks. Nothing is judged
here and nothing private is asked for; `nvml_report` reads the answers.

Each answer is `{"value": …}` or `{"error": <NVML code>, "said": …}` under the call's own name. Only
the standard library and the binding are imported: it starts fast, and from wherever it lies.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

NOT_SUPPORTED, INVALID_ARGUMENT, NOT_FOUND, FUNCTION_NOT_FOUND = 3, 2, 6, 13
NOT_NVML = -1
"""The error of an answer that the binding could not pass on, such as a name that is not UTF-8."""

_MOST_INSTANCES = 16
_MOST_LINKS = 36
_P2P_NVLINK = 2
_PROCESS_BYTES = 24

Call = tuple[Any, ...]
Table = tuple[tuple[Call, ...], ...]
"""Calls by name and arguments; what stands together is tried in its order until one answers.

The later ones are of older drivers or older bindings.
"""


def _alone(*calls: str | Call) -> Table:
    """Calls that have no alternative."""
    return tuple(((call,) if isinstance(call, str) else call,) for call in calls)


_SYSTEM: Table = (
    *_alone("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlDeviceGetCount"),
    (("nvmlSystemGetCudaDriverVersion_v2",), ("nvmlSystemGetCudaDriverVersion",)),
)
_MEMORY_V2 = 0x02000028
_MEMORY = (("nvmlDeviceGetMemoryInfo", _MEMORY_V2), ("nvmlDeviceGetMemoryInfo",))
_PROCESSES: Table = tuple(
    ((f"nvmlDeviceGet{kind}RunningProcesses",), (f"nvmlDeviceGet{kind}RunningProcesses_v2",))
    for kind in ("Compute", "Graphics", "MPSCompute")
)
_CARD_READINGS: Table = (
    *_alone("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetFanSpeed"),
    *_alone("nvmlDeviceGetMarginTemperature"),
    (("nvmlDeviceGetTemperatureV", 0), ("nvmlDeviceGetTemperature", 0)),
    (("nvmlDeviceGetEnforcedPowerLimit",), ("nvmlDeviceGetPowerManagementLimit",)),
    (
        ("nvmlDeviceGetCurrentClocksEventReasons",),
        ("nvmlDeviceGetCurrentClocksThrottleReasons",),
    ),
    *_alone(("nvmlDeviceGetClockInfo", 0), ("nvmlDeviceGetClockInfo", 2)),
)
# What a card has suffered: it moves, but seldom.
CARD_WEAR: Table = (
    *((("nvmlDeviceGetTotalEccErrors", kind, since),) for kind in (0, 1) for since in (0, 1)),
    *_alone(("nvmlDeviceGetRetiredPages", 0), ("nvmlDeviceGetRetiredPages", 1)),
    *_alone("nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetRemappedRows"),
    *_alone("nvmlDeviceGetPcieReplayCounter"),
)
_CARD: Table = (
    *_alone("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo"),
    *_alone("nvmlDeviceGetArchitecture", "nvmlDeviceGetMigMode"),
    _MEMORY,
    *_alone("nvmlDeviceGetAddressingMode", "nvmlDeviceGetComputeMode"),
    *_CARD_READINGS,
    *CARD_WEAR,
    *((("nvmlDeviceGetTemperatureThreshold", kind),) for kind in (0, 1)),
    *_alone(("nvmlDeviceGetMemoryAffinity", 16, 0), ("nvmlDeviceGetCpuAffinity", 32)),
    *_alone("nvmlGpmQueryDeviceSupport"),
    *_PROCESSES,
)
# What a session (`nvml_stay`) asks again.
MOVING: Table = (_MEMORY, *_PROCESSES, *_alone("nvmlDeviceGetMigMode"), *_CARD_READINGS)
MOVING_INSTANCE: Table = (_MEMORY, *_PROCESSES)
_INSTANCE: Table = (
    *_alone("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetGpuInstanceId"),
    *_alone("nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes"),
    _MEMORY,
    *_PROCESSES,
)
# Instantaneous power of the card itself, what it takes to recover, and (before that) a reset.
_FIELDS = ((186, 0), (230, 0), (226, 0))
# The margins at which the card shuts down and slows down, of one that has no absolute limits.
_LIMITS = ((193, 0), (194, 0))
# Errors of NVLinks: of all links until Ampere (CRC of flits and data, replay, recovery), of one
# link on Hopper (replay, recovery, CRC) and from Blackwell on (received, integrity, recovery).
_ALL_LINKS = ((38, 0), (45, 0), (52, 0), (59, 0))
_ONE_LINK = (161, 162, 163, 208, 211, 215)
LINK_ERRORS = "nvmlDeviceGetFieldValues(links)"
_VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

_FABRIC_V2 = 0x02000024

# What the binding itself raises on an answer that it cannot pass on.
_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    ctypes.ArgumentError,
    LookupError,
    TypeError,
    ValueError,
)

Answer = dict[str, Any]


class FabricV1(ctypes.Structure):
    """A card's place in a fabric. Old bindings have a longer UUID there, and so read zeros."""

    _fields_ = [
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint32),
        ("state", ctypes.c_uint),
    ]


class FabricV2(ctypes.Structure):
    """The same with a version in front, and health behind."""

    _fields_ = [
        ("version", ctypes.c_uint),
        *FabricV1._fields_,
        ("healthMask", ctypes.c_uint32),
    ]


class Asker:
    """Calls the binding by name; every failure is an answer."""

    def __init__(self, nvml: Any) -> None:  # noqa: ANN401 - a module without types
        self.nvml = nvml
        # Not an NVMLError, where the binding has it: an unversioned call that the driver lacks.
        self._mismatch = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)

    def ask(self, name: str, *arguments: object) -> tuple[Any, Answer]:
        """What a call returned, and the same as an answer."""
        found, failure = self.call(name, *arguments)
        return found, failure or {"value": plain(found)}

    def call(self, name: str, *arguments: object) -> tuple[Any, Answer | None]:
        """What a call returned, or why it did not."""
        function = getattr(self.nvml, name, None)
        if function is None:
            return None, {"error": FUNCTION_NOT_FOUND, "said": "the binding has no such function"}
        try:
            return function(*arguments), None
        except self.nvml.NVMLError as error:
            return None, {"error": error.value, "said": str(error)}
        except self._mismatch as error:
            return None, {"error": FUNCTION_NOT_FOUND, "said": str(error)}
        except _UNREADABLE as error:
            return None, {"error": NOT_NVML, "said": repr(error)}

    def first(self, calls: dict[str, Answer], alternatives: Any, *handle: object) -> Any:  # noqa: ANN401
        """Ask until one of the alternatives answers, and keep every answer."""
        for name, *arguments in alternatives:
            found, answer = self.ask(name, *handle, *arguments)
            calls[shown(name, *arguments)] = answer
            if "value" in answer:
                return found
        return None

    def handle(self, calls: dict[str, Answer], name: str, *arguments: object) -> Any:  # noqa: ANN401
        """A handle, or `None`; the answer says only whether there is one."""
        found, answer = self.ask(name, *arguments)
        calls[shown(name, *arguments[-1:])] = {"value": True} if found is not None else answer
        return found

    def fields(self, calls: dict[str, Answer], handle: object) -> int:
        """What moves among the values that have a number and no call.

        Returns the time of the newest of them, in microseconds by the driver; zero where it tells
        none.
        """
        found, failure = self.call("nvmlDeviceGetFieldValues", handle, list(_FIELDS))
        calls["nvmlDeviceGetFieldValues"] = failure or _by_number(found)
        return max((one.timestamp for one in found or () if one.nvmlReturn == 0), default=0)

    def values(self, handle: object, asked: Any) -> Answer:  # noqa: ANN401
        """Values by field id, each of which has a return code and a type of its own.

        Those of one link are named by id and link, `161.3`.
        """
        found, failure = self.call("nvmlDeviceGetFieldValues", handle, list(asked))
        return failure or _by_number(found)

    def link_errors(self, calls: dict[str, Answer], handle: object) -> None:
        """The errors of a card's active links, by the counters that its generation has."""
        links = [
            link
            for link in range(_MOST_LINKS)
            if calls.get(shown("nvmlDeviceGetNvLinkState", link), {}).get("value") == 1
        ]
        if not links:
            return
        one = self.values(handle, (*_ALL_LINKS, *((number, links[0]) for number in _ONE_LINK)))
        known = {number for number, _ in answered(one)}
        asked = [pair for pair in _ALL_LINKS if pair[0] in known]
        asked += [(number, link) for number in _ONE_LINK if number in known for link in links]
        calls[LINK_ERRORS] = self.values(handle, asked) if asked else one

    def fabric(self, calls: dict[str, Answer], handle: object) -> None:
        """The fabric, in the newest structure that both the binding and the driver know."""
        for name, info in (
            ("nvmlDeviceGetGpuFabricInfoV", FabricV2(version=_FABRIC_V2)),
            ("nvmlDeviceGetGpuFabricInfo", FabricV1()),
        ):
            _, answer = self.ask(name, handle, ctypes.byref(info))
            calls[name] = answer
            if "value" in answer:
                _, said = self.ask("nvmlErrorString", info.status)
                calls[name] = {"value": plain(info) | {"said": said.get("value")}}
                return

    def links(self, calls: dict[str, Answer], handle: object) -> None:
        """Each NVLink's state and, where it is up, what is at its other end."""
        for link in range(_MOST_LINKS):
            active = self.first(calls, (("nvmlDeviceGetNvLinkState", link),), handle)
            code = calls[shown("nvmlDeviceGetNvLinkState", link)].get("error")
            if code in (NOT_SUPPORTED, INVALID_ARGUMENT, FUNCTION_NOT_FOUND):
                return
            if active == 1:
                for name in (
                    "nvmlDeviceGetNvLinkRemoteDeviceType",
                    "nvmlDeviceGetNvLinkRemotePciInfo",
                ):
                    self.first(calls, ((name, link),), handle)

    def gpu_instances(self, calls: dict[str, Answer], handle: object) -> None:
        """The card's GPU instances, with or without compute instances. Root only."""
        nvml, found = self.nvml, []
        for profile in range(getattr(nvml, "NVML_GPU_INSTANCE_PROFILE_COUNT", 0)):
            info, _ = self.call("nvmlDeviceGetGpuInstanceProfileInfo", handle, profile, 1)
            if info is None or not info.instanceCount:
                continue
            count = ctypes.c_uint(info.instanceCount)
            room = (nvml.c_nvmlGpuInstance_t * info.instanceCount)()
            _, answer = self.ask(
                "nvmlDeviceGetGpuInstances", handle, info.id, room, ctypes.byref(count)
            )
            if "error" in answer:
                calls["nvmlDeviceGetGpuInstances"] = answer
                return
            for one in room[: count.value]:
                about, _ = self.call("nvmlGpuInstanceGetInfo", one)
                if about is not None:
                    slices, memory = info.sliceCount, info.memorySizeMB
                    found.append({"id": about.id, "slices": slices, "memory_mib": memory})
        calls["nvmlDeviceGetGpuInstances"] = {"value": found}

    def instances(self, calls: dict[str, Answer], handle: object) -> list[Answer]:
        """The MIG instances: the maximum is not the number, and their indexes have holes."""
        most = self.first(calls, (("nvmlDeviceGetMaxMigDeviceCount",),), handle)
        found = []
        for index in range(min(_MOST_INSTANCES, _MOST_INSTANCES if most is None else most)):
            own: dict[str, Answer] = {}
            instance = self.handle(own, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if instance is not None:
                for alternatives in _INSTANCE:
                    self.first(own, alternatives, instance)
            elif next(iter(own.values())).get("error") in (NOT_FOUND, INVALID_ARGUMENT):
                continue
            found.append({"index": index, "calls": own})
        return found

    def card(self, index: int) -> tuple[Any, Answer]:
        """Everything about one card, or why it cannot be opened."""
        calls: dict[str, Answer] = {}
        card: Answer = {"index": index, "calls": calls}
        handle = self.handle(calls, "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            return None, card
        for alternatives in _CARD:
            self.first(calls, alternatives, handle)
        self.fields(calls, handle)
        calls["nvmlDeviceGetFieldValues(limits)"] = self.values(handle, _LIMITS)
        self.fabric(calls, handle)
        self.links(calls, handle)
        self.link_errors(calls, handle)
        mode = calls["nvmlDeviceGetMigMode"].get("value")
        if mode and mode[0] == 1:
            card["instances"] = self.instances(calls, handle)
            self.gpu_instances(calls, handle)
        return handle, card

    def pairs(self, handles: dict[int, Any]) -> dict[str, Answer]:
        """Whether two cards reach each other over NVLink, whatever stands between them."""
        calls: dict[str, Answer] = {}
        for first, one in handles.items():
            for second, other in handles.items():
                if first < second:
                    _, answer = self.ask("nvmlDeviceGetP2PStatus", one, other, _P2P_NVLINK)
                    calls[shown("nvmlDeviceGetP2PStatus", first, second)] = answer
        return calls


def answered(answer: Answer) -> list[tuple[int, int]]:
    """The field ids, each with its link, that an answer of `Asker.values` has a value for."""
    found = []
    for name, one in answer.get("value", {}).items():
        number, _, link = name.partition(".")
        if "value" in one:
            found.append((int(number), int(link or 0)))
    return found


def shown(name: str, *arguments: object) -> str:
    """A call as the record names it."""
    return f"{name}({','.join(str(one) for one in arguments)})" if arguments else name


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever a binding returns
    """A returned value as JSON knows it: structures become objects of their fields."""
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, ctypes.Structure):
        # Past the binding's own way to read a field, which is made for people and slow.
        read = ctypes.Structure.__getattribute__
        return {field[0]: plain(read(value, field[0])) for field in value._fields_}
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "value"):
        return value.value
    if hasattr(value, "__dict__"):
        return {name: plain(one) for name, one in vars(value).items()}
    return None


def _by_number(found: Any) -> Answer:  # noqa: ANN401 - an array of ctypes structures
    names = [str(one.fieldId) + (f".{one.scopeId}" if one.scopeId else "") for one in found]
    return {"value": dict(zip(names, map(_field, found), strict=True))}


def _field(one: Any) -> Answer:  # noqa: ANN401 - a ctypes structure
    if one.nvmlReturn != 0 or not 0 <= one.valueType < len(_VALUE_TYPES):
        return {"error": one.nvmlReturn or NOT_NVML}
    return {"value": plain(getattr(one.value, _VALUE_TYPES[one.valueType]))}


def load(library: str) -> tuple[Asker | None, Answer]:
    """NVML, initialised, or `{"failure": …}` where it cannot be asked at all."""
    try:
        # Loaded here and not by the binding, which hides why a library cannot be loaded. Before
        # it, since most machines that have none are asked again and again.
        loaded = ctypes.CDLL(library)
    except OSError as error:
        return None, {"failure": {"what": "library", "said": str(error)}}
    try:
        import pynvml
    except ImportError as error:
        return None, {"failure": {"what": "binding-missing", "said": str(error)}}
    if ctypes.sizeof(getattr(pynvml, "c_nvmlProcessInfo_t", ctypes.c_char)) != _PROCESS_BYTES:
        return None, {"failure": {"what": "binding-stale", "said": str(pynvml.__file__)}}
    pynvml.nvmlLib = loaded
    asker = Asker(pynvml)
    _, answer = asker.ask("nvmlInit")
    if "error" in answer:
        code, said = answer["error"], answer["said"]
        return None, {"failure": {"what": "init", "code": code, "said": said}}
    return asker, {}


def look(asker: Asker) -> tuple[dict[int, Any], Answer]:
    """The handles of the cards that can be opened, and the record of everything."""
    system: dict[str, Answer] = {}
    for alternatives in _SYSTEM:
        asker.first(system, alternatives)
    count = system["nvmlDeviceGetCount"].get("value", 0)
    found = {index: asker.card(index) for index in range(count)}
    handles = {index: handle for index, (handle, _) in found.items() if handle is not None}
    cards = [card for _, card in found.values()]
    return handles, {"system": system, "cards": cards, "pairs": asker.pairs(handles)}


Stay = Callable[[Asker, dict[int, Any], Answer, Callable[[Answer], None]], None]
"""What goes on after the record: with who asks, the handles, the record, and how to tell more."""


def run(library: str, stay: Stay | None = None) -> int:
    """Print the record, and let `stay` go on; returns the exit code.

    What the library itself prints goes to the error stream. A signal to end is heard between two
    calls, and NVML is shut down first: whoever leaves in the middle of a call may leave the driver
    hanging.
    """
    signal.signal(signal.SIGTERM, _leave)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(answer: Answer) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    asker, failure = load(library)
    if asker is None:
        tell(failure)
        return 0
    try:
        handles, record = look(asker)
        tell(record)
        if stay is not None:
            stay(asker, handles, record, tell)
    finally:
        asker.ask("nvmlShutdown")
    return 0


def _leave(*_: object) -> NoReturn:
    raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
