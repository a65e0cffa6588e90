"""One agent under one node's name: who holds it, who waits, and what an outage changes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from llmgw.core.stimuli import NameTaken
from llmgw.errors import LogUnreachable
from llmgw.log.base import Message
from llmgw.log.lease import Lease
from llmgw.log.memory import MemoryLog
from llmgw.naming import ASKS, LEASE_SECONDS, Name


class Flaky(MemoryLog):
    """A log that can be away."""

    away = False

    async def last(self, subject: str) -> Message | None:
        if self.away:
            raise LogUnreachable("no answer")
        return await super().last(subject)

    async def append(self, *words: object, **fields: object) -> int:
        if self.away:
            raise LogUnreachable("no answer")
        return await super().append(*words, **fields)  # type: ignore[arg-type]


class Contender:
    """One agent that claims the name `n1`, and what its brain is told."""

    def __init__(self, log: MemoryLog, identity: str) -> None:
        self.told: list[NameTaken] = []
        self.now = 0.0
        self.name = Name("n1", identity, self.told.append)
        self._lease: Lease = self.name.lease(log, "names.n1", lambda: self.now)

    async def asks(self, after: float = 0.0) -> Contender:
        self.now += after
        await self.name.claim(self._lease)
        return self

    def works(self) -> bool:
        """Whether it has been let to work."""
        return self.name._settled.is_set()


@pytest.fixture
def log() -> Flaky:
    return Flaky(time.time_ns)


@pytest.fixture
def agent(log: Flaky) -> Callable[[str], Contender]:
    return lambda identity: Contender(log, identity)


Make = Callable[[str], Contender]


async def test_the_first_has_the_name_and_the_second_is_told_who_has_it(agent: Make) -> None:
    first, second = await agent("aaaa").asks(), await agent("bbbb").asks()
    assert first.works()
    assert first.told == []
    assert not second.works()
    (told,) = second.told
    assert "(aaaa)" in str(told.holder)


async def test_who_is_gone_keeps_its_name_for_a_while_and_no_longer(agent: Make) -> None:
    await agent("aaaa").asks()
    second = await agent("bbbb").asks()
    await second.asks(after=LEASE_SECONDS - 1)
    assert not second.works()
    await second.asks(after=2)
    assert second.works()
    assert second.told[-1] == NameTaken(None)


async def test_an_agent_that_comes_back_holds_what_it_held(agent: Make) -> None:
    await agent("aaaa").asks()
    assert (await agent("aaaa").asks()).works()


async def test_an_outage_takes_the_name_from_nobody(agent: Make, log: Flaky) -> None:
    first = await agent("aaaa").asks()
    log.away = True
    await first.asks(after=10 * LEASE_SECONDS)
    log.away = False
    await first.asks(after=LEASE_SECONDS)
    assert first.told == []


async def test_who_took_the_name_meanwhile_is_told_to_who_had_it(agent: Make) -> None:
    first, second = await agent("aaaa").asks(), await agent("bbbb").asks()
    for _ in range(4):
        await second.asks(after=LEASE_SECONDS / 3)
    assert second.works()
    await first.asks(after=LEASE_SECONDS)
    assert "(bbbb)" in str(first.told[-1].holder)
    assert first.works(), "what runs is not stopped for that"


async def test_a_claim_that_nobody_answers_keeps_no_agent_from_its_work(
    agent: Make, log: Flaky
) -> None:
    log.away = True
    first = agent("aaaa")
    for _ in range(ASKS - 1):
        await first.asks()
    assert not first.works()
    assert (await first.asks()).works()
