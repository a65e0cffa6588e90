"""Leadership by lease: one holder, handed over when released or silent, never by a wall clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from llmgw.errors import LogUnreachable
from llmgw.log.base import Log
from llmgw.log.embedded import EmbeddedServer, embedded_server
from llmgw.log.jetstream import connect
from llmgw.log.lease import Lease
from llmgw.log.memory import MemoryLog
from tests.support.nats import fresh_subjects, log_on
from tests.support.wait import until

LEASE_SECONDS = 10.0


class Clock:
    """A clock that is moved by hand; each machine has its own, and they never agree."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path) as running:
        yield running


@pytest.fixture(params=["memory", "jetstream"])
async def contender(
    request: pytest.FixtureRequest, server: EmbeddedServer
) -> AsyncIterator[Callable[[Clock], Lease]]:
    """Return a function that makes one more contender for the same lease."""

    def on(log: Log, subject: str) -> Callable[[Clock], Lease]:
        return lambda clock: Lease(log, subject, lease_seconds=LEASE_SECONDS, clock=clock)

    if request.param == "memory":
        yield on(MemoryLog(time.time_ns), "lease.controller")
    else:
        async with log_on(server, fresh_subjects()) as log:
            yield on(log, log.lease_subject("controller"))


Contender = Callable[[Clock], Lease]


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
