"""Real vLLM on the processor, run as a user runs it: `llmgw up`, a catalog, and requests.

Minutes, so only `pytest -m engine_vllm` runs it, with the program that LLMGW_TEST_VLLM names, or
`vllm` on PATH; docs/engines.md says how to install one that needs no GPU. Each test prints what it
saw (`-s` shows it): how long starts and stops took.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from tests.support.cluster import EngineProcess, Up, running_up
from tests.support.nats import is_running
from tests.support.tiny_model import answer_of, write_tiny_folder
from tests.support.wait import until

pytestmark = pytest.mark.engine_vllm

START_SECONDS = 900
NAME = "tiny-v"
SHARED = Path("/dev/shm")
DONE = b"data: [DONE]\n\n"
MODEST = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="session")
def vllm() -> str:
    """The program to run."""
    program = os.environ.get("LLMGW_TEST_VLLM") or shutil.which("vllm")
    if program is None or shutil.which(program) is None:
        pytest.skip("no vLLM here: neither LLMGW_TEST_VLLM nor vllm on PATH")
    return program


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("models") / NAME, NAME, endless=True)


@pytest.fixture
async def up(vllm: str, tmp_path: Path) -> AsyncIterator[Up]:
    before = set(segments())
    async with running_up(tmp_path, vllm=vllm) as running:
        yield running
        await running.apply()
        await running.until_state(lambda state: not state.replicas, "all is over", 60)
        assert named(running) == {}
    assert set(segments()) <= before, "shared memory was left behind"


def entry(folder: Path, *args: str, **fields: object) -> Entry:
    values: dict[str, object] = {
        "name": NAME,
        "engine": "vllm",
        "classes": ("cpu",),
        "memory_bytes": 3 * 2**30,
        "source": str(folder),
        "context": 4096,
        "parallel": 4,
        "args": ("--enforce-eager", "--dtype", "float32", *args),
        "env": MODEST,
        "start_seconds": float(START_SECONDS),
        "stop_seconds": 60.0,
    }
    return Entry(**(values | fields))  # type: ignore[arg-type]


def segments() -> list[str]:
    return [path.name for path in SHARED.glob("psm_*")]


def named(up: Up) -> dict[str, EngineProcess]:
    """The processes of the engine, by what they call themselves."""
    found = {}
    for engine in up.engines():
        with contextlib.suppress(OSError):
            found[Path(f"/proc/{engine.pid}/comm").read_text().strip()] = engine
    return found


async def ready(up: Up, attempt: int) -> str:
    """Wait until this attempt serves, and return its URL."""
    found = await up.event(e.ReplicaBecameReady, START_SECONDS, attempt=attempt)
    print(f"attempt {attempt}: ready after {found.seconds:.1f} s")
    assert sum(engine.pid == found.pid for engine in up.engines()) == 1
    return f"http://{found.address}:{found.port}"


def question(tokens: int, **fields: object) -> dict[str, object]:
    asked = {"role": "user", "content": "Who are you?"}
    return {"model": NAME, "messages": [asked], "max_tokens": tokens, **fields}


async def ask(url: str) -> str:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        answer = (await client.post(f"{url}/v1/chat/completions", json=question(8))).json()
    content: str = answer["choices"][0]["message"]["content"]
    return content


@contextlib.asynccontextmanager
async def streaming(url: str, tokens: int) -> AsyncIterator[bytearray]:
    """Have the model write so much; what is given grows by what comes, until no more does."""
    text = bytearray()

    async def read() -> None:
        async with (
            httpx.AsyncClient(trust_env=False, timeout=120) as client,
            client.stream(
                "POST", f"{url}/v1/chat/completions", json=question(tokens, stream=True)
            ) as answer,
        ):
            with contextlib.suppress(httpx.HTTPError):  # it is cut off where that is tested
                async for more in answer.aiter_bytes():
                    text.extend(more)

    task = asyncio.create_task(read())
    await until(lambda: text.count(b"data:") > 10 or task.done(), 60, "the stream runs")
    assert not task.done(), "the stream was too short"
    try:
        yield text
    finally:
        await task


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.1f} s")


async def progress(up: Up) -> str:
    """What `llmgw ctl replicas` shows of an engine that is starting."""
    _, out, _ = await up.run("ctl", "replicas", "-o", "json", nats_url=up.url)
    rows = json.loads(out) if out else []
    return rows[0].get("progress", "") if rows else ""


async def test_it_loads_serves_and_finishes_its_stream_when_it_is_stopped(
    up: Up, folder: Path
) -> None:
    await up.apply(entry(folder))
    await up.event(e.ReplicaStarting, replica="r1")
    said: str = await until(lambda: progress(up), 300, "its progress is shown")
    print(f"while it loads: {said}")
    url = await ready(up, 1)
    assert up.events(e.ReplicaFailed) == [], "a closed port while it loads is no failure"
    assert answer_of(NAME) in await ask(url)
    async with streaming(url, 3000) as text:
        with timed("stop while a stream runs"):
            await up.apply()
            await up.event(e.ReplicaStopped, 90, replica="r1")
    assert text.endswith(DONE)
    assert text.count(b"word16") == 3000 // 19
    assert named(up) == {}


async def test_workers_that_outlive_its_own_process_are_ended_and_it_starts_again(
    up: Up, folder: Path
) -> None:
    await up.apply(entry(folder))
    await ready(up, 1)
    before, shared = named(up), set(segments())
    assert {"VLLM::EngineCor", "VLLM::Worker"} <= before.keys()
    assert shared, "its processes share memory"
    with timed("all of it ended after SIGKILL to its own process alone"):
        os.kill(up.events(e.ReplicaBecameReady)[0].pid, signal.SIGKILL)
        failed = await up.event(e.ReplicaFailed, 60, attempt=1)
        alive = [name for name, engine in before.items() if is_running(engine.pid)]
        assert alive == [], "they are gone before it is said"
        assert not shared & set(segments())
    assert failed.signal == signal.SIGKILL
    url = await ready(up, 2)
    assert answer_of(NAME) in await ask(url)

    engines = {engine.pid for engine in up.engines()}
    with timed("adopted after SIGKILL to the agent"):
        os.kill(up.part("agent"), signal.SIGKILL)
        await up.event(e.ReplicaAdopted, 60, attempt=2)
    assert answer_of(NAME) in await ask(url)
    assert {engine.pid for engine in up.engines()} == engines
    assert len(up.events(e.ReplicaStarting)) == 2
    with timed("stop of an idle one"):
        await up.apply()
        await up.event(e.ReplicaStopped, 90, replica="r1")


async def test_one_that_hangs_and_answers_for_its_health_is_started_again(
    up: Up, folder: Path
) -> None:
    await up.apply(entry(folder, liveness_seconds=20.0))
    for attempt, hanging in enumerate((while_it_writes, while_it_is_idle), start=1):
        url = await ready(up, attempt)
        with timed(f"found out to hang {hanging.__name__.replace('_', ' ')}"):
            await hanging(up, url)
            failed = await up.event(e.ReplicaFailed, 120, attempt=attempt)
        assert failed.reason.startswith("it hung: its health endpoint answered, and no token came")
        assert failed.meaning == "the engine hung: requests waited, and it worked on none of them"
    async with asyncio.timeout(60):
        await up.event(e.ReplicaStarting, attempt=3)


async def while_it_writes(up: Up, url: str) -> None:
    async with streaming(url, 3900) as text:
        os.kill(named(up)["VLLM::EngineCor"].pid, signal.SIGSTOP)
        assert await health(url) == 200
    assert not text.endswith(DONE)


async def while_it_is_idle(up: Up, url: str) -> None:
    os.kill(named(up)["VLLM::EngineCor"].pid, signal.SIGSTOP)
    async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
        asked = client.post(f"{url}/v1/chat/completions", json=question(8))
        answer = asyncio.create_task(asked)
        assert await health(url) == 200
        with pytest.raises(httpx.HTTPError):
            await answer


async def health(url: str) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return (await client.get(f"{url}/health")).status_code


async def test_one_that_works_is_never_found_to_hang(up: Up, folder: Path) -> None:
    """For many times as long as it may: neither while it writes, nor idle with a client."""
    await up.apply(entry(folder, liveness_seconds=3.0))
    url = await ready(up, 1)
    for _ in range(2):
        async with streaming(url, 3900) as text:
            pass
        assert text.endswith(DONE)
    log = up.folder / "data/logs/agent.log"
    _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    await until(
        lambda: log.read_text().count("asked_for_a_token") > 2, 60, "it gives a token, three times"
    )
    writer.close()
    await writer.wait_closed()
    assert up.events(e.ReplicaFailed) == []
    assert answer_of(NAME) in await ask(url)


@pytest.mark.parametrize(
    ("args", "fields", "meaning"),
    [
        (("--no-such-argument",), {}, "vLLM does not know an argument, or not with that value"),
        (("--block-size", "many"), {}, "vLLM does not know an argument, or not with that value"),
        ((), {"source": "/no/such/folder"}, "the model folder is not there or holds no model"),
    ],
    ids=["an argument that it does not know", "a value that is none", "no model"],
)
async def test_a_start_that_fails_is_explained(
    up: Up, folder: Path, args: tuple[str, ...], fields: dict[str, object], meaning: str
) -> None:
    with timed("failed"):
        await up.apply(entry(folder, *args, **fields))
        failed = await up.event(e.ReplicaFailed, START_SECONDS, attempt=1)
    assert failed.meaning == meaning, failed.output
    assert failed.exit_code not in (0, None)
