"""Asks NVML what moves, again and again, for as long as somebody wants to know.

Run by `nvml_session` as a program of its own (`python -P nvml_stay.py LIBRARY`). It prints what
`nvml_probe` prints, stays, and for every line that it reads prints what has moved since and what
the driver told by itself, until its input ends.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import sys
import time
from collections.abc import Callable
from typing import Any

_PROBE = "llmgw.hardware.nvml_probe"

if __name__ == "__main__":
    # Run as a file it finds nothing of llmgw, or another version: the file beside it is meant.
    _spec = importlib.util.spec_from_file_location(
        _PROBE, __file__.removesuffix("stay.py") + "probe.py"
    )
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules[_PROBE] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_PROBE])

from llmgw.hardware.nvml_probe import (  # noqa: E402 - known only now
    CARD_WEAR,
    FUNCTION_NOT_FOUND,
    LINK_ERRORS,
    MOVING,
    MOVING_INSTANCE,
    NOT_SUPPORTED,
    Answer,
    Asker,
    answered,
    plain,
    run,
    shown,
)

_MULTIPROCESSORS_BUSY = 2
BUSY = f"nvmlGpmMetricsGet({_MULTIPROCESSORS_BUSY})"
_GPM_SECONDS = 0.1
# How many samples of a session there are to one of what moves but seldom.
_SELDOM = 10

# Critical errors (Xid), and changes of the MIG mode or of instances.
_EVENTS = 0x8 | 0x100
_MOST_EVENTS = 100


class Busyness:
    """How busy GPU instances are (GPM: Hopper and later), from two samples apart in time.

    Two buffers for each instance are filled in turn. The first time there is no answer yet, and
    none sooner after the last than the driver has new counters.
    """

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._samples: dict[tuple[int, int], list[Any]] = {}
        self._asked: dict[tuple[int, int], float] = {}

    def ask(self, calls: dict[str, Answer], handle: object, card: int, instance: int) -> None:
        """Answer for one GPU instance of a card, by the card's handle."""
        key, now = (card, instance), time.monotonic()
        if now - self._asked.get(key, -math.inf) < _GPM_SECONDS:
            return
        self._asked[key] = now
        samples = self._samples.setdefault(key, [])
        oldest = samples.pop(0) if len(samples) == 2 else None
        fresh, failure = (oldest, None) if oldest else self._asker.call("nvmlGpmSampleAlloc")
        if failure is None:
            _, failure = self._asker.call("nvmlGpmMigSampleGet", handle, instance, fresh)
        if failure is not None:
            for sample in (*samples, *((fresh,) if fresh else ())):
                self._asker.call("nvmlGpmSampleFree", sample)
            samples.clear()
            calls[BUSY] = failure
            return
        samples.append(fresh)
        if len(samples) == 2:
            calls[BUSY] = self._metric(*samples)

    def _metric(self, before: object, after: object) -> Answer:
        nvml = self._asker.nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        asked.sample1, asked.sample2 = before, after
        metric = asked.metrics[0]
        metric.metricId = _MULTIPROCESSORS_BUSY
        _, failure = self._asker.call("nvmlGpmMetricsGet", asked)
        if failure is None and metric.nvmlReturn != 0:
            failure = {"error": metric.nvmlReturn}
        return failure or {"value": plain(metric.value)}


class Events:
    """What the driver tells by itself: critical errors (Xid) and changes of MIG.

    Only of what happens after they were registered for, and only of cards that can tell.
    """

    def __init__(self, asker: Asker, handles: dict[int, Any]) -> None:
        self._asker = asker
        self._cards: dict[object, int] = {}
        self._set = asker.call("nvmlEventSetCreate")[0]
        for index, handle in handles.items() if self._set is not None else ():
            able, _ = asker.call("nvmlDeviceGetSupportedEventTypes", handle)
            wanted = _EVENTS & (able or 0)
            if wanted:
                _, failure = asker.call("nvmlDeviceRegisterEvents", handle, wanted, self._set)
                if failure is None:
                    self._cards[_address(handle)] = index

    def told(self) -> list[Answer]:
        """What has happened since this was asked last; returns at once."""
        found: list[Answer] = []
        while self._cards and len(found) < _MOST_EVENTS:
            event, _ = self._asker.call("nvmlEventSetWait_v2", self._set, 0)
            if event is None:  # mostly: nothing happened in this time
                break
            card = self._cards.get(_address(event.device))
            told = {"card": card, "kind": event.eventType, "data": event.eventData}
            found.append(told | {"gpu_instance": getattr(event, "gpuInstanceId", None)})
        return found


def _address(handle: Any) -> int | None:  # noqa: ANN401 - a ctypes pointer
    """What two handles of one card have in common."""
    return ctypes.cast(handle, ctypes.c_void_p).value


class Session:
    """Asks again what moves, and each so many times what moves but seldom.

    Which calls the driver has is known from the record. Only answers that are not those of the
    last time are told: most of what a machine says in a second it has said before.
    """

    def __init__(self, asker: Asker, handles: dict[int, Any], record: Answer) -> None:
        self._asker = asker
        self._busyness = Busyness(asker)
        self._events = Events(asker, handles)
        self._looks = 0
        self._cards = [
            (handles[card["index"]], card["index"], *_asked_again(card))
            for card in record["cards"]
            if card["index"] in handles
        ]
        self._stamps: dict[str, int] = {}
        self._told: dict[tuple[int, int | None], dict[str, Answer]] = {}
        for card in record["cards"]:
            self._told[card["index"], None] = card["calls"]
            for one in card.get("instances", ()):
                self._told[card["index"], one["index"]] = one["calls"]

    def look(self) -> Answer:
        """What has moved since this was asked last, or since the record was taken."""
        self._looks += 1
        cards = [self._card(*card) for card in self._cards]
        moved = [card for card in cards if card["calls"] or card["instances"]]
        return {"cards": moved, "events": self._events.told(), "stamps": self._stamps}

    def _card(
        self,
        handle: object,
        index: int,
        moving: Any,  # noqa: ANN401 - alternatives of calls
        wear: Any,  # noqa: ANN401
        links: list[tuple[int, int]],
        instances: list[tuple[int, int | None, Any]],
    ) -> Answer:
        calls: dict[str, Answer] = {}
        seldom = self._looks % _SELDOM == 0
        self._ask(calls, moving, handle)
        self._ask(calls, wear if seldom else (), handle)
        self._stamps[str(index)] = self._asker.fields(calls, handle)
        if links and seldom:
            calls[LINK_ERRORS] = self._asker.values(handle, links)
        found = []
        for number, gpu_instance, asked in instances:
            own = self._instance(handle, number, asked)
            if gpu_instance is not None:
                self._busyness.ask(own, handle, index, gpu_instance)
            if news := self._news(own, index, number):
                found.append({"index": number, "calls": news})
        return {"index": index, "calls": self._news(calls, index), "instances": found}

    def _news(
        self, calls: dict[str, Answer], card: int, instance: int | None = None
    ) -> dict[str, Answer]:
        known = self._told[card, instance]
        news = {name: answer for name, answer in calls.items() if known.get(name) != answer}
        known.update(news)
        return news

    def _instance(self, card: object, index: int, asked: Any) -> dict[str, Answer]:  # noqa: ANN401
        calls: dict[str, Answer] = {}
        name = "nvmlDeviceGetMigDeviceHandleByIndex"
        handle = self._asker.handle(calls, name, card, index)
        if handle is not None:
            self._ask(calls, asked, handle)
        return calls

    def _ask(self, calls: dict[str, Answer], asked: Any, handle: object) -> None:  # noqa: ANN401
        """As `Asker.first` does for each of the alternatives, but without making their names."""
        call = self._asker.call
        for alternatives in asked:
            for named, name, arguments in alternatives:
                found, failure = call(name, handle, *arguments)
                calls[named] = failure or {"value": plain(found)}
                if failure is None:
                    break


def _asked_again(card: Answer) -> tuple[Any, Any, list[tuple[int, int]], list[Any]]:
    """What a session asks of a card: what moves, wear, errors of links, and of its instances."""
    calls = card["calls"]
    gpm = (calls["nvmlGpmQueryDeviceSupport"].get("value") or {}).get("isSupportedDevice") == 1
    instances = []
    for one in card.get("instances", ()):
        gpu_instance = one["calls"].get("nvmlDeviceGetGpuInstanceId", {}).get("value")
        able = _able(MOVING_INSTANCE, one["calls"])
        instances.append((one["index"], gpu_instance if gpm else None, able))
    links = answered(calls.get(LINK_ERRORS, {}))
    return _able(MOVING, calls), _able(CARD_WEAR, calls), links, instances


def _able(asked: Any, before: dict[str, Answer]) -> list[Any]:  # noqa: ANN401
    """The calls to ask again, each after its name in the record, without those not to be had."""
    lacking = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
    able = []
    for calls in asked:
        named = [(shown(*call), call[0], call[1:]) for call in calls]
        able.append([one for one in named if before.get(one[0], {}).get("error") not in lacking])
    return [calls for calls in able if calls]


def stay(
    asker: Asker, handles: dict[int, Any], record: Answer, tell: Callable[[Answer], None]
) -> None:
    """Tell what has moved for every line of input."""
    session = Session(asker, handles, record)
    for _ in sys.stdin:
        tell(session.look())


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], stay))
