"""What every log promises, tried on the one in memory and on a real nats-server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from llmgw.errors import AppendRefused, LlmgwError, LogUnreachable
from llmgw.log.base import Log, LogRewound, Message
from llmgw.log.embedded import EmbeddedServer, embedded_server
from llmgw.log.memory import MemoryLog
from llmgw.wire import Outgoing
from tests.support.nats import Subjects, collect, log_on, numbered, payloads
from tests.support.wait import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest_asyncio.fixture(params=["memory", "jetstream"], loop_scope="module")
async def log(
    request: pytest.FixtureRequest, server: EmbeddedServer, at: Subjects
) -> AsyncIterator[Log]:
    if request.param == "memory":
        memory = MemoryLog(time.time_ns)
        yield memory
        await memory.close()
    else:
        async with log_on(server, at) as jetstream:
            yield jetstream


async def test_what_is_appended_is_read_back_in_order(log: Log, at: Subjects) -> None:
    before_ns = time.time_ns()
    sequences = [
        await log.append(at.event(), b"one", message_id="1"),
        await log.append(at.command(), b"two", message_id="2"),
        await log.append(at.decision, b"three", message_id="3"),
    ]
    assert sequences == [1, 2, 3]
    messages = await collect(log, until=3)
    assert [(m.sequence, m.subject, m.payload) for m in messages] == [
        (1, at.event(), b"one"),
        (2, at.command(), b"two"),
        (3, at.decision, b"three"),
    ]
    times = [message.time_ns for message in messages]
    assert times == sorted(times)
    assert before_ns - 10**9 < times[0] < time.time_ns() + 10**9


async def test_the_same_id_is_stored_once_and_answers_the_first_sequence(
    log: Log, at: Subjects
) -> None:
    first = await log.append(at.event(), b"one", message_id="same")
    await log.append(at.event(), b"two", message_id="other")
    assert await log.append(at.event(), b"one", message_id="same") == first
    assert (await log.bounds()).last == 2


async def test_a_fenced_append_passes_when_nobody_wrote_in_between(log: Log, at: Subjects) -> None:
    first = await log.append(at.decision, b"1", message_id="1", expected_last=0, fence=at.fence)
    await log.append(at.event(), b"a fact outside the fence", message_id="fact")
    second = await log.append(
        at.decision, b"2", message_id="2", expected_last=first, fence=at.fence
    )
    assert second > first


async def test_a_stale_fenced_append_is_refused_and_stores_nothing(log: Log, at: Subjects) -> None:
    first = await log.append(at.decision, b"1", message_id="1")
    with pytest.raises(AppendRefused, match="somebody else wrote"):
        await log.append(at.decision, b"2", message_id="2", expected_last=0, fence=at.fence)
    with pytest.raises(AppendRefused):
        await log.append(at.decision, b"2", message_id="3", expected_last=9, fence=at.fence)
    assert (await log.bounds()).last == first


async def test_a_fenced_append_that_is_repeated_answers_its_first_sequence(
    log: Log, at: Subjects
) -> None:
    first = await log.append(at.decision, b"1", message_id="1", expected_last=0, fence=at.fence)
    await log.append(at.decision, b"2", message_id="2", expected_last=first, fence=at.fence)
    again = await log.append(at.decision, b"1", message_id="1", expected_last=0, fence=at.fence)
    assert again == first
    assert (await log.bounds()).last == 2


async def test_of_two_who_append_behind_the_same_fence_one_is_refused(
    log: Log, at: Subjects
) -> None:
    outcomes = await asyncio.gather(
        *(
            log.append(at.decision, b"me", message_id=who, expected_last=0, fence=at.fence)
            for who in ("a", "b")
        ),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["AppendRefused", "int"]


async def test_half_a_fence_is_an_error(log: Log, at: Subjects) -> None:
    with pytest.raises(LlmgwError, match="both"):
        await log.append(at.decision, b"1", message_id="1", fence=at.fence)


async def test_many_messages_are_stored_in_their_order(log: Log, at: Subjects) -> None:
    entries = numbered(at.event(), 5_000)
    assert await log.append_many(entries) == list(range(1, 5_001))
    messages = await collect(log, until=5_000)
    assert payloads(messages) == [entry.payload for entry in entries]
    assert [message.sequence for message in messages] == list(range(1, 5_001))


async def test_repeating_many_messages_stores_only_what_is_missing(log: Log, at: Subjects) -> None:
    entries = numbered(at.event(), 50)
    first = await log.append_many(entries[:30])
    assert await log.append_many(entries) == [*first, *range(31, 51)]
    assert await log.append_many(entries) == list(range(1, 51))
    assert payloads(await collect(log, until=50)) == [entry.payload for entry in entries]


async def test_appending_no_messages_does_nothing(log: Log) -> None:
    assert await log.append_many([]) == []


async def test_a_decision_and_its_commands_are_stored_together_or_not_at_all(
    log: Log, at: Subjects
) -> None:
    first = await log.append(at.decision, b"old", message_id="old")
    together = [
        Outgoing(at.decision, b"decision", "d"),
        Outgoing(at.command("n1"), b"command", "c1"),
        Outgoing(at.command("n2"), b"command", "c2"),
    ]
    with pytest.raises(AppendRefused):
        await log.append_many(together, expected_last=first - 1, fence=at.fence)
    assert (await log.bounds()).last == first
    stored = await log.append_many(together, expected_last=first, fence=at.fence)
    assert stored == [2, 3, 4]
    assert await log.append_many(together, expected_last=first, fence=at.fence) == stored
    assert (await log.bounds()).last == 4


async def test_following_starts_where_it_is_told(log: Log, at: Subjects) -> None:
    await log.append_many(numbered(at.event(), 10))
    assert [m.sequence for m in await collect(log, start=7, until=10)] == [7, 8, 9, 10]


async def test_following_ends_after_until(log: Log, at: Subjects) -> None:
    await log.append_many(numbered(at.event(), 10))
    assert [m.sequence for m in await collect(log, until=4)] == [1, 2, 3, 4]
    assert await collect(log, start=5, until=4) == []
    assert await collect(log, start=1, until=0) == []


async def test_following_until_a_sequence_that_is_yet_to_come_waits_for_it(
    log: Log, at: Subjects
) -> None:
    await log.append_many(numbered(at.event(), 3))
    reading = asyncio.ensure_future(collect(log, until=5))
    await log.append_many(numbered(at.event(), 4, first=4))
    assert [m.sequence for m in await reading] == [1, 2, 3, 4, 5]


async def test_filters_choose_subjects(log: Log, at: Subjects) -> None:
    await log.append(at.event("n1"), b"fact 1", message_id="1")
    await log.append(at.command("n1"), b"command 1", message_id="2")
    await log.append(at.command("n2"), b"command 2", message_id="3")
    await log.append(at.event("n2"), b"fact 2", message_id="4")

    async def chosen(*filters: str) -> list[bytes]:
        return payloads(await collect(log, subjects=filters, until=4))

    assert await chosen(at.command("n2")) == [b"command 2"]
    assert await chosen(at.command("*")) == [b"command 1", b"command 2"]
    assert await chosen(f"llmgw.v1.{at.cluster}.event.>") == [b"fact 1", b"fact 2"]
    assert await chosen(at.event("n2"), at.command("n1")) == [b"command 1", b"fact 2"]
    assert await chosen(at.command("n3")) == []


async def test_a_follower_sees_what_is_appended_while_it_follows(log: Log, at: Subjects) -> None:
    await log.append_many(numbered(at.event(), 100))
    following = asyncio.ensure_future(collect(log, enough=lambda seen: len(seen) >= 300))
    for entry in numbered(at.event(), 200, first=101):
        await log.append(entry.subject, entry.payload, message_id=entry.message_id)
    seen = await asyncio.wait_for(following, 20)
    assert [message.sequence for message in seen] == list(range(1, 301))


async def test_a_filtered_follower_sees_what_comes_later(log: Log, at: Subjects) -> None:
    seen: list[Message] = []

    async def follow() -> None:
        async for batch in log.follow(subjects=[at.command("n1")]):
            seen.extend(batch)

    following = asyncio.ensure_future(follow())
    for number in range(20):
        subject = at.command("n1") if number % 2 else at.command("n2")
        await log.append(subject, b"%d" % number, message_id=str(number))
    await until(lambda: len(seen) == 10, what="all ten commands have come")
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    assert payloads(seen) == [b"%d" % number for number in range(1, 20, 2)]


async def test_a_slow_follower_misses_nothing(log: Log, at: Subjects) -> None:
    await log.append_many(numbered(at.event(), 12_000))
    count = 0
    async for batch in log.follow(until=12_000):
        assert batch[0].sequence == count + 1
        count += len(batch)
        assert (await log.bounds()).last == 12_000
    assert count == 12_000


async def test_last_is_the_newest_under_a_filter(log: Log, at: Subjects) -> None:
    assert await log.last(at.fence) is None
    await log.append(at.decision, b"1", message_id="1")
    second = await log.append(at.decision, b"2", message_id="2")
    await log.append(at.event(), b"3", message_id="3")
    newest = await log.last(at.fence)
    assert newest is not None
    assert (newest.sequence, newest.payload) == (second, b"2")
    assert newest == (await collect(log, until=3))[1]


async def test_bounds_of_an_empty_log_are_zero(log: Log, at: Subjects) -> None:
    empty = await log.bounds()
    assert (empty.first, empty.last) == (0, 0)
    assert empty.created_ns > 0
    await log.append_many(numbered(at.event(), 3))
    grown = await log.bounds()
    assert (grown.first, grown.last, grown.created_ns) == (1, 3, empty.created_ns)


async def test_following_from_beyond_the_end_says_that_the_log_was_rewound(
    log: Log, at: Subjects
) -> None:
    await log.append_many(numbered(at.event(), 3))
    with pytest.raises(LogRewound):
        await collect(log, start=500, until=600)


async def test_a_closed_log_says_so_and_can_be_closed_twice(log: Log, at: Subjects) -> None:
    await log.append(at.event(), b"1", message_id="1")
    await log.close()
    await log.close()
    with pytest.raises(LogUnreachable, match="closed"):
        await log.append(at.event(), b"2", message_id="2")
    with pytest.raises(LogUnreachable, match="closed"):
        await log.bounds()


async def test_closing_the_log_ends_its_followers(log: Log, at: Subjects) -> None:
    await log.append(at.event(), b"1", message_id="1")
    seen: list[Message] = []

    async def follow() -> None:
        async for batch in log.follow():
            seen.extend(batch)

    following = asyncio.ensure_future(follow())
    await until(lambda: seen, what="the first message has come")
    await log.close()
    with pytest.raises(LogUnreachable, match="closed"):
        await asyncio.wait_for(following, 10)


async def test_a_wiped_memory_log_is_noticed_by_its_followers() -> None:
    log = MemoryLog(iter(range(100)).__next__)
    await log.append("a", b"1", message_id="1")
    reader = log.follow()
    assert payloads(list(await anext(reader))) == [b"1"]
    log.wipe()
    with pytest.raises(LogRewound):
        await anext(reader)
    assert (await log.bounds()).last == 0
