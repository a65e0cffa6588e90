"""Asks NVML everything that discovery needs, call by call, and prints the answers as JSON.

Run by `nvml` as a short program of its own (`python -P nvml_probe.py LIBRARY`): NVML keeps its list
of MIG instances for as long as it is initialised, an open session keeps an administrator from
carving and resetting cards, and a broken driver may hang or crash whoever asks. Nothing is judged
here and nothing private is asked for; `nvml_report` reads the answers.

With `--session`, run by `nvml_session`, it stays, and for every line that it reads prints again
what moves from moment to moment, until its input ends.

Each answer is `{"value": …}` or `{"error": <NVML code>, "said": …}` under the call's own name. Only
the standard library and the binding are imported: it starts fast, and from wherever it lies.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
from typing import Any

NOT_SUPPORTED, INVALID_ARGUMENT, NOT_FOUND, FUNCTION_NOT_FOUND = 3, 2, 6, 13
NOT_NVML = -1
"""The error of an answer that the binding could not pass on, such as a name that is not UTF-8."""

_MOST_INSTANCES = 16
_MOST_LINKS = 36
_P2P_NVLINK = 2
_PROCESS_BYTES = 24

# Tried in this order until one answers: later ones are of older drivers or older bindings.
_SYSTEM: tuple[tuple[tuple[Any, ...], ...], ...] = (
    (("nvmlSystemGetDriverVersion",),),
    (("nvmlSystemGetNVMLVersion",),),
    (("nvmlSystemGetCudaDriverVersion_v2",), ("nvmlSystemGetCudaDriverVersion",)),
    (("nvmlDeviceGetCount",),),
)
_MEMORY_V2 = 0x02000028
_MEMORY = (("nvmlDeviceGetMemoryInfo", _MEMORY_V2), ("nvmlDeviceGetMemoryInfo",))
_PROCESSES = tuple(
    (
        (f"nvmlDeviceGet{kind}RunningProcesses",),
        (f"nvmlDeviceGet{kind}RunningProcesses_v2",),
    )
    for kind in ("Compute", "Graphics", "MPSCompute")
)
_CARD_READINGS: tuple[tuple[tuple[Any, ...], ...], ...] = (
    (("nvmlDeviceGetUtilizationRates",),),
    (("nvmlDeviceGetTemperatureV", 0), ("nvmlDeviceGetTemperature", 0)),
    (("nvmlDeviceGetMarginTemperature",),),
    (("nvmlDeviceGetPowerUsage",),),
    (("nvmlDeviceGetEnforcedPowerLimit",), ("nvmlDeviceGetPowerManagementLimit",)),
    (("nvmlDeviceGetFanSpeed",),),
    (
        ("nvmlDeviceGetCurrentClocksEventReasons",),
        ("nvmlDeviceGetCurrentClocksThrottleReasons",),
    ),
)
_CARD: tuple[tuple[tuple[Any, ...], ...], ...] = (
    (("nvmlDeviceGetName",),),
    (("nvmlDeviceGetUUID",),),
    (("nvmlDeviceGetPciInfo",),),
    (("nvmlDeviceGetArchitecture",),),
    (("nvmlDeviceGetMigMode",),),
    _MEMORY,
    (("nvmlDeviceGetAddressingMode",),),
    (("nvmlDeviceGetComputeMode",),),
    *_CARD_READINGS,
    (("nvmlDeviceGetTemperatureThreshold", 1),),
    (("nvmlDeviceGetTotalEccErrors", 0, 1),),
    (("nvmlDeviceGetTotalEccErrors", 1, 1),),
    (("nvmlDeviceGetRetiredPages", 0),),
    (("nvmlDeviceGetRetiredPages", 1),),
    (("nvmlDeviceGetRetiredPagesPendingStatus",),),
    (("nvmlDeviceGetRemappedRows",),),
    (("nvmlDeviceGetMemoryAffinity", 16, 0),),
    *_PROCESSES,
)
# What a session asks again. Calls that the driver does not have are not repeated.
_MOVING: tuple[tuple[tuple[Any, ...], ...], ...] = (
    _MEMORY,
    *_PROCESSES,
    (("nvmlDeviceGetMigMode",),),
    *_CARD_READINGS,
)
_MOVING_INSTANCE = (_MEMORY, *_PROCESSES)
_INSTANCE: tuple[tuple[tuple[Any, ...], ...], ...] = (
    (("nvmlDeviceGetUUID",),),
    (("nvmlDeviceGetName",),),
    (("nvmlDeviceGetGpuInstanceId",),),
    (("nvmlDeviceGetComputeInstanceId",),),
    (("nvmlDeviceGetAttributes",),),
    _MEMORY,
    *_PROCESSES,
)
# Instantaneous power of the card itself, what it takes to recover, and (before that) a reset.
_FIELDS = ((186, 0), (230, 0), (226, 0))
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
        self._nvml = nvml
        # Not an NVMLError, where the binding has it: an unversioned call that the driver lacks.
        self._mismatch = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)

    def ask(self, name: str, *arguments: object) -> tuple[Any, Answer]:
        """What a call returned, and the same as an answer."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None, {"error": FUNCTION_NOT_FOUND, "said": "the binding has no such function"}
        try:
            found = function(*arguments)
            return found, {"value": plain(found)}
        except self._nvml.NVMLError as error:
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

    def fields(self, calls: dict[str, Answer], handle: object) -> None:
        """Values by field id, each of which has a return code and a type of its own."""
        found, answer = self.ask("nvmlDeviceGetFieldValues", handle, list(_FIELDS))
        if found is not None:
            answer = {"value": {str(one.fieldId): _field(one) for one in found}}
        calls["nvmlDeviceGetFieldValues"] = answer

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
        """The ids of the card's GPU instances, with or without compute instances. Root only."""
        nvml, found = self._nvml, []
        for profile in range(getattr(nvml, "NVML_GPU_INSTANCE_PROFILE_COUNT", 0)):
            info, _ = self.ask("nvmlDeviceGetGpuInstanceProfileInfo", handle, profile, 1)
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
                about, _ = self.ask("nvmlGpuInstanceGetInfo", one)
                if about is not None:
                    found.append(about.id)
        calls["nvmlDeviceGetGpuInstances"] = {"value": sorted(found)}

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
        self.fabric(calls, handle)
        self.links(calls, handle)
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


def shown(name: str, *arguments: object) -> str:
    """A call as the record names it."""
    return f"{name}({','.join(str(one) for one in arguments)})" if arguments else name


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever a binding returns
    """A returned value as JSON knows it: structures become objects of their fields."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, ctypes.Structure):
        names = [field[0] for field in value._fields_]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if hasattr(value, "value"):
        return value.value
    if hasattr(value, "__dict__"):
        return {name: plain(one) for name, one in vars(value).items()}
    return None


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


class Session:
    """Asks again what moves. Which calls the driver has is known from the record."""

    def __init__(self, asker: Asker, handles: dict[int, Any], record: Answer) -> None:
        self._asker = asker
        self._cards = [
            (
                handles[card["index"]],
                card["index"],
                _able(_MOVING, card["calls"]),
                [
                    (one["index"], _able(_MOVING_INSTANCE, one["calls"]))
                    for one in card.get("instances", ())
                ],
            )
            for card in record["cards"]
            if card["index"] in handles
        ]

    def look(self) -> Answer:
        """What has moved since the record was taken."""
        return {"cards": [self._card(*card) for card in self._cards]}

    def _card(self, handle: object, index: int, asked: Any, instances: Any) -> Answer:  # noqa: ANN401
        calls: dict[str, Answer] = {}
        for alternatives in asked:
            self._asker.first(calls, alternatives, handle)
        self._asker.fields(calls, handle)
        found = [self._instance(handle, *one) for one in instances]
        return {"index": index, "calls": calls, "instances": found}

    def _instance(self, card: object, index: int, asked: Any) -> Answer:  # noqa: ANN401
        calls: dict[str, Answer] = {}
        name = "nvmlDeviceGetMigDeviceHandleByIndex"
        handle = self._asker.handle(calls, name, card, index)
        if handle is not None:
            for alternatives in asked:
                self._asker.first(calls, alternatives, handle)
        return {"index": index, "calls": calls}


def _able(asked: Any, before: dict[str, Answer]) -> list[Any]:  # noqa: ANN401
    """The calls to ask again, without those that the driver does not have."""
    lacking = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
    able = [
        [call for call in calls if before.get(shown(*call), {}).get("error") not in lacking]
        for calls in asked
    ]
    return [calls for calls in able if calls]


def main(arguments: list[str]) -> int:
    """Print the record, in a session one more for every line of input.

    What the library itself prints goes to the error stream.
    """
    *options, library = arguments
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asker, failure = load(library)
    if asker is None:
        print(json.dumps(failure), file=answers, flush=True)
        return 0
    try:
        handles, record = look(asker)
        print(json.dumps(record), file=answers, flush=True)
        session = Session(asker, handles, record)
        for _ in sys.stdin if "--session" in options else ():
            print(json.dumps(session.look()), file=answers, flush=True)
    finally:
        asker.ask("nvmlShutdown")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
