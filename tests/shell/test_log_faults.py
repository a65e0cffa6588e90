"""The log on a nats-server that is killed, hung, wiped, restarted or asked for what it denies."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmgw.errors import LlmgwError, LogUnreachable, UsageError
from llmgw.log.base import LogRewound, Message
from llmgw.log.embedded import EmbeddedServer
from llmgw.log.jetstream import JetStreamLog, connect
from llmgw.log.reader import MOST_OUTSTANDING
from tests.support.load import Load
from tests.support.nats import (
    Subjects,
    ask,
    collect,
    fresh_subjects,
    log_on,
    numbered,
    payloads,
    plain_server,
    stopped,
)
from tests.support.nats_cluster import three_servers
from tests.support.wait import until


async def kill(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    assert await server.wait() == -signal.SIGKILL


async def test_kill_under_appends_loses_and_doubles_nothing(
    server: EmbeddedServer, at: Subjects
) -> None:
    async with log_on(server, at) as log, log_on(server, at) as other:
        load = Load(log, at)
        following = asyncio.ensure_future(
            collect(other, enough=lambda seen: seen[-1].payload == b"the end")
        )
        for _ in range(3):
            await load.goes_on()
            await kill(server)
            await server.restart()
        await load.goes_on()
        await load.stop()
        last = await log.append(at.event(), b"the end", message_id="the end")
        seen = await asyncio.wait_for(following, 30)
        stored = await collect(log, until=last)

    by_sequence = {message.sequence: message.payload for message in stored}
    assert load.acknowledged.items() <= by_sequence.items(), "an acknowledged message was lost"
    assert len(set(payloads(stored))) == len(stored), "a message was stored twice"
    assert seen == stored, "the follower did not see each message exactly once, in order"
    for writer in (b"w0", b"w1", b"w2", b"w3", b"decision"):
        mine = [p for p in payloads(stored) if p.startswith(writer + b"-")]
        assert mine == sorted(mine, key=lambda p: int(p.rpartition(b"-")[2]))


@pytest.mark.faults
async def test_killing_the_server_that_leads_the_log_loses_and_doubles_nothing(
    tmp_path: Path, at: Subjects
) -> None:
    """On three servers: appends wait for the next leader and go out again with the same id."""
    async with three_servers(tmp_path) as servers:
        log = await connect(
            servers.url,
            at.cluster,
            name="test",
            replicas=3,
            deadline_seconds=30,
            answer_deadline_seconds=60,
        )
        load = Load(log, at)
        for _ in range(4):
            await load.goes_on()
            leader = await servers.leader_of(f"LLMGW_{at.cluster}_LOG")
            load.longest_seconds = 0.0
            await servers.kill(leader)
            await load.goes_on()
            print(f"{leader} killed: appends waited for {load.longest_seconds:.1f} s at most")
            await servers.start(leader)
            await servers.until_ready()
        await load.stop()
        stored = await collect(log, until=(await log.bounds()).last)
        await log.close()
    by_sequence = {message.sequence: message.payload for message in stored}
    lost = load.acknowledged.items() - by_sequence.items()
    print(f"{len(load.acknowledged)} acknowledged, {len(lost)} lost")
    assert lost == set()
    assert len(set(payloads(stored))) == len(stored), "a message was stored twice"


async def test_kill_under_a_drain_of_many_keeps_order(server: EmbeddedServer, at: Subjects) -> None:
    entries = numbered(at.event(), 20_000)
    async with log_on(server, at) as log:
        draining = asyncio.ensure_future(log.append_many(entries))
        await collect(log, enough=bool)  # The drain has begun.
        await kill(server)
        await server.restart()
        sequences = await draining
        assert sequences == list(range(1, 20_001))
        assert payloads(await collect(log, until=20_000)) == [e.payload for e in entries]


async def test_a_follower_goes_on_after_a_restart(server: EmbeddedServer, at: Subjects) -> None:
    async with log_on(server, at) as log, log_on(server, at) as other:
        await log.append_many(numbered(at.event(), 10))
        reader = log.follow()
        assert payloads(list(await anext(reader)))[-1] == b"10"
        waiting = asyncio.ensure_future(anext(reader))
        await server.restart()
        await other.append(at.event(), b"11", message_id="id-11")
        assert payloads(list(await asyncio.wait_for(waiting, 10))) == [b"11"]
        await reader.aclose()  # type: ignore[attr-defined]


async def test_a_filtered_follower_goes_on_after_a_restart(
    server: EmbeddedServer, at: Subjects
) -> None:
    async with log_on(server, at) as log:
        for number in range(10):
            subject = at.command("n1") if number % 2 else at.command("n2")
            await log.append(subject, b"%d" % number, message_id=str(number))
        reader = log.follow(subjects=[at.command("n1")])
        assert payloads(list(await anext(reader))) == [b"1", b"3", b"5", b"7", b"9"]
        await kill(server)
        await server.restart()
        await log.append(at.command("n2"), b"not mine", message_id="x")
        await log.append(at.command("n1"), b"11", message_id="11")
        assert payloads(list(await asyncio.wait_for(anext(reader), 10))) == [b"11"]
        await reader.aclose()  # type: ignore[attr-defined]


async def test_an_append_during_an_outage_is_stored_once_it_ends(
    server: EmbeddedServer, at: Subjects
) -> None:
    async with log_on(server, at) as log:
        await kill(server)
        appending = asyncio.ensure_future(log.append(at.event(), b"1", message_id="1"))
        await until(lambda: not log.connected, what="the outage was noticed")
        await server.restart()
        assert await appending == 1
        assert log.connected


async def test_an_append_gives_up_after_its_deadline_and_says_where(
    server: EmbeddedServer, at: Subjects
) -> None:
    log = await connect(server.url, at.cluster, name="test", answer_deadline_seconds=0.5)
    await server.stop()
    with pytest.raises(LogUnreachable, match=rf"{server.url}.*0\.5 s.*again is safe"):
        await log.append(at.event(), b"1", message_id="1")
    with pytest.raises(LogUnreachable, match=r"0\.5 s"):
        await collect(log, until=5)
    await log.close()


async def test_a_hung_server_is_noticed_and_used_again(
    server: EmbeddedServer, at: Subjects
) -> None:
    async with log_on(server, at, ping_interval_seconds=0.5) as log:
        await log.append(at.event(), b"1", message_id="1")
        reader = log.follow()
        await anext(reader)
        waiting = asyncio.ensure_future(anext(reader))
        with stopped(server.pid):
            appending = asyncio.ensure_future(log.append(at.event(), b"2", message_id="2"))
            await until(lambda: not log.connected, 15, "the silent server was noticed")
        assert await asyncio.wait_for(appending, 20) == 2
        assert payloads(list(await asyncio.wait_for(waiting, 20))) == [b"2"]
        await reader.aclose()  # type: ignore[attr-defined]
        assert (await log.bounds()).last == 2


async def test_closing_does_not_wait_for_a_hung_server(
    server: EmbeddedServer, at: Subjects
) -> None:
    log = await connect(server.url, at.cluster, name="test")
    with stopped(server.pid):
        appending = [
            asyncio.ensure_future(log.append(at.event(), b"x" * 1_000_000, message_id=str(n)))
            for n in range(20)
        ]
        await asyncio.wait_for(log.close(), 5)
        outcomes = await asyncio.gather(*appending, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {LogUnreachable}


async def read_up_to(sequence: int, reader: AsyncIterator[Sequence[Message]]) -> None:
    """Take batches, however they are cut, until `sequence` has come."""
    while (await anext(reader))[-1].sequence < sequence:
        pass


async def test_a_wiped_server_is_set_up_again_and_followers_are_told(
    server: EmbeddedServer, at: Subjects, tmp_path: Path
) -> None:
    async with log_on(server, at) as log:
        await log.append_many(numbered(at.event(), 10))
        created_ns = (await log.bounds()).created_ns
        reader = log.follow()
        await read_up_to(10, reader)
        waiting = asyncio.ensure_future(anext(reader))
        await server.stop()
        await asyncio.to_thread(shutil.rmtree, tmp_path / "nats" / "jetstream")
        await server.start()
        with pytest.raises(LogRewound, match="wiped"):
            await asyncio.wait_for(waiting, 20)
        assert await log.append(at.event(), b"1", message_id="id-1") == 1
        assert (await log.bounds()).created_ns > created_ns


async def test_another_log_in_the_same_place_is_not_taken_for_the_old_one(
    server: EmbeddedServer, at: Subjects, tmp_path: Path
) -> None:
    async with log_on(server, at) as log:
        await log.append_many(numbered(at.event(), 10))
        reader = log.follow()
        await read_up_to(10, reader)
        await server.stop()
        await asyncio.to_thread(shutil.rmtree, tmp_path / "nats" / "jetstream")
        await server.start()
        await log.append_many(numbered(at.event("n2"), 50))
        with pytest.raises(LogRewound, match="another one than before"):
            await anext(reader)


async def test_a_stream_deleted_on_a_running_server_is_made_again(
    server: EmbeddedServer, at: Subjects
) -> None:
    async with log_on(server, at) as log:
        await log.append(at.event(), b"1", message_id="1")
        reader = log.follow()
        await anext(reader)
        waiting = asyncio.ensure_future(anext(reader))
        await ask(server, f"$JS.API.STREAM.DELETE.LLMGW_{at.cluster}_LOG")
        assert await log.append(at.event(), b"new", message_id="2") == 1
        with pytest.raises(LogRewound):
            await asyncio.wait_for(waiting, 20)


async def test_deleting_and_purging_messages_is_refused(
    server: EmbeddedServer, at: Subjects
) -> None:
    async with log_on(server, at) as log:
        await log.append(at.event(), b"1", message_id="1")
        stream = f"LLMGW_{at.cluster}_LOG"
        deleted = await ask(server, f"$JS.API.STREAM.MSG.DELETE.{stream}", {"seq": 1})
        purged = await ask(server, f"$JS.API.STREAM.PURGE.{stream}")
        assert "not permitted" in str(deleted["error"])
        assert "not permitted" in str(purged["error"])
        assert payloads(await collect(log, until=1)) == [b"1"]


async def test_missing_messages_are_named(server: EmbeddedServer, at: Subjects) -> None:
    async with log_on(server, at) as log:
        await log.append_many(numbered(at.event(), 10))
        stream = f"LLMGW_{at.cluster}_LOG"
        info = await ask(server, f"$JS.API.STREAM.INFO.{stream}")
        config = info["config"]
        assert isinstance(config, dict)
        await ask(
            server, f"$JS.API.STREAM.UPDATE.{stream}", {**config, "max_msgs": 4, "discard": "old"}
        )
        with pytest.raises(LogUnreachable, match="1 to 6"):
            await collect(log, until=10)
        with pytest.raises(LogUnreachable, match="1 to 6"):
            await collect(log, until=10, subjects=(at.event(),))
        assert [m.sequence for m in await collect(log, start=7, until=10)] == [7, 8, 9, 10]


async def test_a_message_that_is_too_large_is_refused_before_it_is_sent(
    server: EmbeddedServer, at: Subjects
) -> None:
    async with log_on(server, at) as log:
        largest = b"x" * 1024 * 1024
        assert await log.append(at.event(), largest, message_id="largest") == 1
        with pytest.raises(LlmgwError, match=r"too large.*takes"):
            await log.append(at.event(), b"x" * 1_200_000, message_id="2")
        assert log.connected
        assert await log.append(at.event(), b"3", message_id="3") == 2


async def test_many_large_messages_are_cut_into_batches(
    server: EmbeddedServer, at: Subjects
) -> None:
    async with log_on(server, at) as log:
        entries = [e._replace(payload=e.payload * 100_000) for e in numbered(at.event(), 60)]
        assert await log.append_many(entries) == list(range(1, 61))
        assert payloads(await collect(log, until=60)) == [e.payload for e in entries]
        with pytest.raises(LlmgwError, match="one fenced append"):
            await log.append_many(entries, expected_last=0, fence=at.fence)


async def is_newest(log: JetStreamLog, subject: str, payload: bytes) -> bool:
    newest = await log.last(subject)
    return newest is not None and newest.payload == payload


async def test_samples_go_to_a_stream_of_their_own_and_are_dropped_in_an_outage(
    server: EmbeddedServer, at: Subjects
) -> None:
    async with log_on(server, at) as log:
        for number in range(5):
            assert await log.publish_sample(at.telemetry("n1"), b"n1 %d" % number)
        assert await log.publish_sample(at.telemetry("n2"), b"n2")
        await until(lambda: is_newest(log, at.telemetry("n2"), b"n2"), what="n2 has a sample")
        assert await is_newest(log, at.telemetry("n1"), b"n1 4")
        await log.publish_sample(at.telemetry("n1"), b"n1 5")
        await until(lambda: is_newest(log, at.telemetry("n1"), b"n1 5"), what="n1 has a new one")
        assert await is_newest(log, at.telemetry("n2"), b"n2")
        assert (await log.bounds()).last == 0
        await server.stop()
        await until(lambda: not log.connected, what="the outage was noticed")
        assert not await log.publish_sample(at.telemetry("n1"), b"lost")
        assert log.samples_dropped == 1
        await server.start()
        await until(lambda: log.connected, what="the outage is over")
        await log.publish_sample(at.telemetry("n1"), b"back")
        await until(lambda: is_newest(log, at.telemetry("n1"), b"back"), what="samples go again")


async def test_a_follower_that_takes_nothing_is_sent_no_more_than_it_asked_for(
    server: EmbeddedServer, at: Subjects
) -> None:
    async with log_on(server, at) as log:
        await log.append_many(numbered(at.event(), 12_000))
        reader = log.follow()
        count = len(await anext(reader))
        for _ in range(20):  # Many turns in which the server could send, and nothing is taken.
            await log.bounds()
        stream = f"LLMGW_{at.cluster}_LOG"
        [consumer] = await consumers(server, stream)
        assert count <= consumer["delivered"]["consumer_seq"] <= count + MOST_OUTSTANDING
        async for batch in reader:
            count += len(batch)
            if count == 12_000:
                break
        await reader.aclose()  # type: ignore[attr-defined]
        forgotten: bool = await until(
            lambda: gone(server, stream), what="the closed follower's consumer is gone"
        )
        assert forgotten


async def consumers(server: EmbeddedServer, stream: str) -> list[Any]:
    listed = await ask(server, f"$JS.API.CONSUMER.LIST.{stream}")
    found = listed["consumers"]
    assert isinstance(found, list)
    return found


async def gone(server: EmbeddedServer, stream: str) -> bool:
    return not await consumers(server, stream)


async def test_two_clusters_on_one_server_do_not_meet(server: EmbeddedServer) -> None:
    one, two = fresh_subjects(), fresh_subjects()
    async with log_on(server, one) as first, log_on(server, two) as second:
        await first.append(one.event(), b"one", message_id="1")
        assert (await second.bounds()).last == 0
        assert await second.append(two.event(), b"two", message_id="1") == 1


async def test_nobody_there_is_said_with_the_url_and_without_the_password() -> None:
    with pytest.raises(LogUnreachable) as failure:
        await connect("nats://me:secret@127.0.0.1:9", "c", name="test", deadline_seconds=0.5)
    assert "127.0.0.1:9" in str(failure.value)
    assert "LLMGW_NATS_URL" in str(failure.value)
    assert "secret" not in str(failure.value)
    assert failure.value.exit_code == 3


@pytest.mark.parametrize("url", ["", "nats://127.0.0.1:port", "http://127.0.0.1:4222"])
async def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a NATS server"):
        await connect(url, "c", name="test", deadline_seconds=1)


PERMISSIONS = """
jetstream { store_dir: "%s" }
authorization { users: [
  { user: operator, password: o }
  { user: agent, password: a, permissions: {
      publish: ["$JS.API.STREAM.INFO.>", "llmgw.v1.*.event.node.n1.>"], subscribe: ["_INBOX.>"] } }
] }
"""


async def test_a_wrong_password_is_said_at_once_and_not_shown(tmp_path: Path) -> None:
    async with plain_server(tmp_path, PERMISSIONS % tmp_path) as address:
        with pytest.raises(LogUnreachable, match="refuses these credentials") as failure:
            await connect(f"nats://agent:wrong@{address}", "c", name="test", deadline_seconds=60)
    assert "wrong" not in str(failure.value)


async def test_a_publish_that_is_not_permitted_is_said_at_once(
    tmp_path: Path, at: Subjects
) -> None:
    async with (
        plain_server(tmp_path, PERMISSIONS % tmp_path) as address,
        log_on(f"nats://operator:o@{address}", at),
        log_on(f"nats://agent:a@{address}", at) as agent,
    ):
        assert await agent.append(at.event("n1"), b"mine", message_id="1") == 1
        with pytest.raises(LlmgwError, match=r"does not let this user publish on .*n2"):
            await agent.append(at.event("n2"), b"not mine", message_id="2")
        assert agent.connected


async def test_a_server_without_jetstream_is_refused(tmp_path: Path) -> None:
    async with plain_server(tmp_path, "") as address:
        with pytest.raises(LlmgwError, match="does not offer JetStream"):
            await connect(f"nats://{address}", "c", name="test")


async def test_a_cluster_name_that_cannot_be_a_subject_is_refused(server: EmbeddedServer) -> None:
    with pytest.raises(UsageError, match="cluster name"):
        await connect(server.url, "two.words", name="test")


async def test_a_stream_that_loses_facts_is_refused(server: EmbeddedServer, at: Subjects) -> None:
    stream = f"LLMGW_{at.cluster}_LOG"
    await ask(
        server,
        f"$JS.API.STREAM.CREATE.{stream}",
        {
            "name": stream,
            "subjects": [f"llmgw.v1.{at.cluster}.event.>"],
            "storage": "memory",
            "max_age": 3_600_000_000_000,
        },
    )
    with pytest.raises(LlmgwError) as failure:
        await connect(server.url, at.cluster, name="test")
    for reason in ("command.>", "stored in memory", "by age", "deleting"):
        assert reason in str(failure.value)
