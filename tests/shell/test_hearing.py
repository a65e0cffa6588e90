"""Signs of life: heard at once, kept nowhere, and sent whatever else hangs. A real nats-server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from asyncio import to_thread
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from llmgw import wire
from llmgw.controller import WATCH_SECONDS
from llmgw.core import events as e
from llmgw.log.connection import PREPARE_AGAIN_SECONDS
from llmgw.log.embedded import EmbeddedServer
from llmgw.log.hearing import Ear
from llmgw.log.jetstream import PING_INTERVAL_SECONDS, JetStreamLog
from llmgw.loglink import LogLink
from llmgw.outbox import open_outbox
from llmgw.settings import Settings
from llmgw.testing.fake_smi import FakeAnswer, write_fake_smi
from tests.support.cluster import NAME, Cluster
from tests.support.nats import Subjects, log_on
from tests.support.wait import until


@contextlib.asynccontextmanager
async def listening(log: JetStreamLog, *subjects: str) -> AsyncIterator[tuple[Ear, list[str]]]:
    """Hear for the length of the block; give the ear, and the subjects that were heard."""
    heard: list[str] = []
    ear = log.ear(subjects, lambda subject, _: heard.append(subject))
    task = asyncio.create_task(ear.listen())
    try:
        await until(lambda: ear.since is not None, what="somebody listens")
        yield ear, heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def every_node(cluster: str) -> str:
    return wire.heartbeat_subject(cluster, "*")


async def test_what_is_said_is_heard_and_kept_nowhere(server: EmbeddedServer, at: Subjects) -> None:
    async with log_on(server, at) as log, listening(log, every_node(at.cluster)) as (_, heard):
        subject = wire.heartbeat_subject(at.cluster, "n1")
        assert await log.say(subject, b"alive")
        await until(lambda: heard == [subject], what="it is heard")
        assert (await log.bounds()).last == 0
        assert await log.last(f"llmgw.v1.{at.cluster}.telemetry.>") is None


async def test_an_ear_hears_again_after_an_outage_and_tells_since_when(
    server: EmbeddedServer, at: Subjects
) -> None:
    async with log_on(server, at) as log, listening(log, every_node(at.cluster)) as (ear, heard):
        before = ear.since
        assert before is not None
        await server.stop()
        await until(lambda: not log.connected, what="the outage is noticed")
        assert ear.since is None
        subject = wire.heartbeat_subject(at.cluster, "n1")
        assert not await log.say(subject, b"to nobody")
        await server.start()
        await until(lambda: ear.since is not None, 20, "somebody listens again")
        assert before < (ear.since or 0.0) <= time.monotonic()
        await log.say(subject, b"alive")
        await until(lambda: heard == [subject], what="it is heard")


async def test_every_node_of_a_program_beats_as_often_as_it_should_and_again_after_an_outage(
    server: EmbeddedServer, at: Subjects, tmp_path: Path
) -> None:
    nodes = [f"n{k}" for k in range(50)]
    settings = Settings(
        node="n",
        data=tmp_path,
        cluster=at.cluster,
        nats_url=server.url,
        heartbeat_seconds=0.2,
    )

    async def start_over() -> None:
        raise AssertionError("it is the same log")

    async with (
        log_on(server, at) as log,
        listening(log, every_node(at.cluster)) as (_, heard),
        open_outbox(tmp_path) as outbox,
    ):
        link = LogLink(settings, "test", outbox, start_over)
        await link.connect()
        beating = asyncio.create_task(link.say_alive(dict.fromkeys(nodes, "s1")))

        async def all_beat() -> None:
            """Wait for five more beats of each, of which all have as many."""
            heard.clear()
            await until(lambda: len(heard) >= 5 * len(nodes), 20, "all beat")
            counts = Counter(heard)
            assert counts.keys() == {wire.heartbeat_subject(at.cluster, node) for node in nodes}
            assert max(counts.values()) - min(counts.values()) <= 1

        await all_beat()
        await server.stop()
        await until(lambda: not log.connected, what="the outage is noticed")
        await server.start()
        await until(lambda: log.connected, 20, what="the outage is over")
        await all_beat()
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await link.close()


async def test_a_node_whose_driver_hangs_from_the_start_lives_all_the_same(
    cluster: Cluster, tmp_path: Path
) -> None:
    program = tmp_path / "nvidia-smi"
    hangs = dict.fromkeys(("-L", "-q -x", "topo -m"), FakeAnswer("", end="ignore-term"))
    await to_thread(write_fake_smi, program, hangs)
    async with listening(cluster.log, every_node(NAME)) as (_, heard):
        cluster.agent(
            backend="nvidia-smi", nvidia_smi=program, cpu_device="", heartbeat_seconds=0.1
        )
        await until(lambda: len(heard) >= 10, 20, "it says that it lives")
        assert {*heard} == {wire.heartbeat_subject(NAME, "n1")}
        assert cluster.events(e.NodeStarted) == [], "it is still looking at its hardware"


def test_a_node_whose_server_hangs_has_found_another_one_before_it_counts_as_lost(
    tmp_path: Path,
) -> None:
    """The last heartbeat that came, two intervals of pings, another server, a look at the clock."""
    settings = Settings(node="n", data=tmp_path)
    leaving_seconds = 2 * PING_INTERVAL_SECONDS + PREPARE_AGAIN_SECONDS
    silent_seconds = settings.heartbeat_seconds + leaving_seconds + WATCH_SECONDS
    assert silent_seconds <= 0.8 * settings.node_lost_seconds
