"""Leadership by lease: one holder, handed over when released or silent, never by a wall clock."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from llmgw.errors import LogUnreachable
from llmgw.log.base import Log, Message
from llmgw.log.embedded import EmbeddedServer
from llmgw.log.jetstream import connect
from llmgw.log.lease import Lease
from llmgw.log.memory import MemoryLog
from tests.support.nats import fresh_subjects, log_on
from tests.support.wait import until

LEASE_SECONDS = 10.0
SEEDS = 150

Contender = Callable[..., Lease]


class Clock:
    """A clock that is moved by hand; each machine has its own, and they never agree."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


class Weak:
    """What a lease needs of a log. It can be away, or do what it is asked and lose the answer."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.is_away = self.loses_answers = False
        self.on_the_way: Callable[[], object] = list

    async def append(
        self,
        subject: str,
        payload: bytes,
        *,
        message_id: str,
        expected_last: int | None = None,
        fence: str | None = None,
    ) -> int:
        self.on_the_way()
        self._fail_if(self.is_away)
        sequence = await self._log.append(
            subject, payload, message_id=message_id, expected_last=expected_last, fence=fence
        )
        self.on_the_way()
        self._fail_if(self.loses_answers)
        return sequence

    async def last(self, subject: str) -> Message | None:
        self._fail_if(self.is_away)
        message = await self._log.last(subject)
        self.on_the_way()
        return message

    def _fail_if(self, fails: bool) -> None:
        if fails:
            raise LogUnreachable("no answer")


@pytest.fixture(params=["memory", "jetstream"])
async def contender(
    request: pytest.FixtureRequest, server: EmbeddedServer
) -> AsyncIterator[Contender]:
    """Return a function that makes one more contender for the same lease."""

    def on(log: Log, subject: str) -> Callable[..., Lease]:
        def make(
            clock: Clock,
            weak: Callable[[Log], Any] = lambda log: log,
            silence: Callable[[str], float] = lambda _: 0.0,
        ) -> Lease:
            return Lease(
                weak(log), subject, lease_seconds=LEASE_SECONDS, clock=clock, silence=silence
            )

        return make

    if request.param == "memory":
        yield on(MemoryLog(time.time_ns), "lease.controller")
    else:
        async with log_on(server, fresh_subjects()) as log:
            yield on(log, log.lease_subject("controller"))


async def looks_on(lease: Lease, clock: Clock, seconds: float) -> None:
    """Let time go on for one that waits and looks as often as it should, up to its last look."""
    end = clock.seconds + seconds
    while clock.seconds + lease.pause_seconds < end:
        clock.seconds += lease.pause_seconds
        assert not await lease.acquire("b")
    clock.seconds = end


async def test_one_of_two_gets_the_lease_and_the_other_sees_who(contender: Contender) -> None:
    a, b = contender(Clock(0)), contender(Clock(5_000))
    assert await a.acquire("a")
    assert not await b.acquire("b")
    assert (a.held, b.held) == (True, False)
    assert (a.leader, b.leader) == ("a", "a")


async def test_two_that_ask_together_do_not_both_get_it(contender: Contender) -> None:
    leases = [contender(Clock(n * 1_000)) for n in range(5)]
    got = await asyncio.gather(*(lease.acquire(str(n)) for n, lease in enumerate(leases)))
    assert sum(got) == 1


async def test_a_renewed_lease_stays_and_keeps_others_out(contender: Contender) -> None:
    mine, theirs = Clock(0), Clock(0)
    a, b = contender(mine), contender(theirs)
    await a.acquire("a")
    for _ in range(5):
        mine.seconds += LEASE_SECONDS / 2
        theirs.seconds += LEASE_SECONDS / 2
        assert await a.renew()
        assert a.held
        assert not await b.acquire("b")


async def test_a_paused_holder_loses_the_lease_and_learns_it(contender: Contender) -> None:
    mine, theirs = Clock(0), Clock(0)
    a, b = contender(mine), contender(theirs)
    await a.acquire("a")
    assert not await b.acquire("b")
    await looks_on(b, theirs, LEASE_SECONDS)
    assert await b.acquire("b")
    mine.seconds += LEASE_SECONDS
    assert not a.held
    assert not await a.renew()
    assert not await a.acquire("a")
    assert b.held
    assert a.leader == "b"


async def test_a_holder_counts_itself_out_before_others_may_count_it_out(
    contender: Contender,
) -> None:
    mine, theirs = Clock(0), Clock(0)
    a, b = contender(mine), contender(theirs)
    await a.acquire("a")
    await b.acquire("b")
    mine.seconds += LEASE_SECONDS * 0.9
    theirs.seconds += LEASE_SECONDS * 0.9
    assert not a.held
    assert not await b.acquire("b")


async def test_a_lease_that_is_new_to_us_is_waited_for_however_old_it_is(
    contender: Contender,
) -> None:
    await contender(Clock(0)).acquire("a")
    theirs = Clock(1e9)
    b = contender(theirs)
    assert not await b.acquire("b")
    theirs.seconds += LEASE_SECONDS - 1
    assert not await b.acquire("b")
    theirs.seconds += 1
    assert await b.acquire("b")


async def test_a_lease_that_ran_out_is_still_its_holder_s_if_nobody_took_it(
    contender: Contender,
) -> None:
    mine = Clock(0)
    a = contender(mine)
    await a.acquire("a")
    mine.seconds += 10 * LEASE_SECONDS
    assert not a.held
    assert await a.renew()
    assert a.held


async def test_one_that_could_not_look_waits_anew_since_the_holder_could_not_renew_either(
    contender: Contender,
) -> None:
    mine, theirs = Clock(0), Clock(0)
    a, b = contender(mine), contender(theirs)
    await a.acquire("a")
    assert not await b.acquire("b")
    theirs.seconds += 3 * LEASE_SECONDS
    assert not await b.acquire("b")
    assert await a.renew()
    await looks_on(b, theirs, LEASE_SECONDS)
    assert not await b.acquire("b"), "it was renewed meanwhile"
    theirs.seconds += 2 * b.pause_seconds
    assert await b.acquire("b")


async def test_a_released_lease_is_free_at_once(contender: Contender) -> None:
    a, b = contender(Clock(0)), contender(Clock(0))
    await a.acquire("a")
    assert not await b.acquire("b")
    await a.release()
    assert not a.held
    assert await b.acquire("b")
    assert not await a.renew()
    await a.release()
    assert b.held


async def test_a_lease_can_be_taken_again_after_its_release(contender: Contender) -> None:
    a = contender(Clock(0))
    for _ in range(3):
        assert await a.acquire("a")
        await a.release()


async def test_the_next_life_of_a_holder_waits_for_the_first_to_run_out(
    contender: Contender,
) -> None:
    await contender(Clock(0)).acquire("a")
    clock = Clock(0)
    reborn = contender(clock)
    assert not await reborn.acquire("a")
    clock.seconds += LEASE_SECONDS
    assert await reborn.acquire("a")


# --- answers that are lost ------------------------------------------------------------------------


def weak_contender(contender: Contender, clock: Clock) -> tuple[Lease, Weak]:
    logs: list[Weak] = []

    def weak(log: Log) -> Weak:
        logs.append(Weak(log))
        return logs[-1]

    lease = contender(clock, weak)
    return lease, logs[0]


async def test_who_took_the_lease_without_hearing_so_asks_again_and_has_it_alone(
    contender: Contender,
) -> None:
    mine, theirs = Clock(0), Clock(0)
    (a, log), b = weak_contender(contender, mine), contender(theirs)
    log.loses_answers = True
    with pytest.raises(LogUnreachable):
        await a.acquire("a")
    assert (a.held, a.leader) == (False, None), "nothing is done on what may not be so"
    assert not await b.acquire("b")
    log.loses_answers = False
    mine.seconds = theirs.seconds = a.pause_seconds
    assert await a.acquire("a")
    assert a.held
    assert not await b.acquire("b")


async def test_who_asked_for_the_lease_in_vain_has_it_in_full_when_it_is_asked_for_again(
    contender: Contender,
) -> None:
    clock = Clock(0)
    a, log = weak_contender(contender, clock)
    log.on_the_way = lambda: setattr(log, "is_away", True)  # right after the look
    with pytest.raises(LogUnreachable):
        await a.acquire("a")
    log.on_the_way, log.is_away = list, False
    clock.seconds += 2 * LEASE_SECONDS
    assert await a.acquire("a")
    assert a.held


async def test_a_renewal_counts_from_when_it_was_asked_for_first(contender: Contender) -> None:
    mine, theirs = Clock(0), Clock(0)
    (a, log), b = weak_contender(contender, mine), contender(theirs)
    await a.acquire("a")
    mine.seconds = theirs.seconds = LEASE_SECONDS / 2
    log.loses_answers = True
    with pytest.raises(LogUnreachable):
        await a.renew()
    assert not await b.acquire("b"), "it was renewed, and is seen to be"
    log.loses_answers = False
    mine.seconds += LEASE_SECONDS * 0.75
    assert await a.renew()
    assert (a.held, a.leader) == (True, "a"), "for what is left since it was asked for first"
    mine.seconds += LEASE_SECONDS * 0.1
    assert (a.held, a.leader) == (False, "a")
    await looks_on(b, theirs, LEASE_SECONDS)
    assert await b.acquire("b")


async def test_a_renewal_that_came_through_long_ago_is_followed_by_one_of_now(
    contender: Contender,
) -> None:
    clock = Clock(0)
    a, log = weak_contender(contender, clock)
    await a.acquire("a")
    log.loses_answers = True
    with pytest.raises(LogUnreachable):
        await a.renew()
    log.loses_answers = False
    clock.seconds += 2 * LEASE_SECONDS
    assert await a.renew()
    assert a.held


# --- what is heard otherwise than through the log -------------------------------------------------


async def test_who_could_not_look_takes_the_lease_at_once_of_a_holder_that_is_silent(
    contender: Contender,
) -> None:
    mine, theirs = Clock(0), Clock(0)
    silent = {"a": 0.0}
    a, b = contender(mine), contender(theirs, silence=silent.__getitem__)
    await a.acquire("a")
    assert not await b.acquire("b")
    mine.seconds = theirs.seconds = LEASE_SECONDS / 6
    await a.renew()
    b.hear("a", a.sequence)
    silent["a"] = theirs.seconds = 2 * LEASE_SECONDS
    b.hear("a", a.sequence)
    assert await b.acquire("b")


async def test_a_record_that_nobody_heard_of_is_waited_for_whatever_its_holder_does(
    contender: Contender,
) -> None:
    mine, theirs = Clock(0), Clock(0)
    a, b = contender(mine), contender(theirs, silence=lambda _: 1e9)
    await a.acquire("a")
    b.hear("a", a.sequence)
    assert not await b.acquire("b")
    mine.seconds = theirs.seconds = 2 * LEASE_SECONDS
    await a.renew()
    assert a.held
    assert not await b.acquire("b")
    await looks_on(b, theirs, LEASE_SECONDS)
    assert await b.acquire("b")


# --- all of it together ---------------------------------------------------------------------------


class Two:
    """Two contenders whose clocks run alike, on a log that is away and loses answers at random.

    What one hears of the other may come late or not at all, and whether it seems silent is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        log = MemoryLog(time.time_ns)
        self.clocks = {name: Clock(self.random.uniform(0, 1e6)) for name in "ab"}
        self.logs = {name: Weak(log) for name in "ab"}
        self.leases = {name: self._contender(name) for name in "ab"}
        self.leads = dict.fromkeys("ab", False)
        self.paused = dict.fromkeys("ab", False)
        self.said: list[tuple[Lease, str, int]] = []
        self.terms = 0

    def _contender(self, name: str) -> Lease:
        self.logs[name].on_the_way = lambda: self.go_on(self.random.choice((0, 0, 0.1, 3)))
        return Lease(
            self.logs[name],  # type: ignore[arg-type]
            "lease",
            lease_seconds=LEASE_SECONDS,
            clock=self.clocks[name],
            silence=lambda _: self.random.choice((0.0, 1e9)),
        )

    def go_on(self, seconds: float) -> None:
        for clock in self.clocks.values():
            clock.seconds += seconds

    def break_or_mend(self) -> None:
        away = self.random.random() < 0.3
        for name in "ab":
            self.logs[name].is_away = away or self.random.random() < 0.1
            self.logs[name].loses_answers = self.random.random() < 0.2
            self.paused[name] = self.random.random() < 0.2

    async def act(self, name: str, other: str) -> None:
        lease = self.leases[name]
        with contextlib.suppress(LogUnreachable):
            if self.leads[name]:
                self.leads[name] = await lease.renew()
            else:
                self.leads[name] = await lease.acquire(name)
                self.terms += self.leads[name]
        if self.leads[name]:
            self.said.append((self.leases[other], name, lease.sequence))

    async def step(self) -> None:
        self.go_on(self.random.choice((0.1, LEASE_SECONDS / 6, LEASE_SECONDS / 6, 5)))
        if self.random.random() < 0.1:
            self.break_or_mend()
        for name, other in self.random.sample([("a", "b"), ("b", "a")], 2):
            if not self.paused[name]:
                await self.act(name, other)
            both = all(lease.held for lease in self.leases.values())
            assert not both, f"two hold it, with seed {self.seed}"
        while self.said and self.random.random() < 0.8:
            lease, name, sequence = self.said.pop(0)
            lease.hear(name, sequence)


async def test_two_never_hold_it_whatever_is_lost_late_or_away() -> None:
    terms = 0
    for seed in range(SEEDS):
        two = Two(seed)
        for _ in range(200):
            await two.step()
        terms += two.terms
    assert terms > 3 * SEEDS, "they do take it from each other"


async def test_an_unreachable_log_costs_the_lease_and_nothing_else(server: EmbeddedServer) -> None:
    cluster = fresh_subjects().cluster
    log = await connect(server.url, cluster, name="test", answer_deadline_seconds=0.3)
    clock = Clock(0)
    lease = Lease(log, log.lease_subject("controller"), lease_seconds=LEASE_SECONDS, clock=clock)
    assert await lease.acquire("a")
    await server.stop()
    with pytest.raises(LogUnreachable):
        await lease.renew()
    held_at = {0: lease.held}
    clock.seconds += LEASE_SECONDS
    held_at[1] = lease.held
    assert held_at == {0: True, 1: False}
    await server.start()
    await until(lambda: log.connected, what="the log is back")
    assert await lease.acquire("a")
    await log.close()
