"""A machine looked at again and again: what holds on from look to look, and what does not."""

from __future__ import annotations

from pathlib import Path

from anyio import to_thread

from llmgw.hardware.discover import HardwareSettings
from llmgw.hardware.shapes import shape
from llmgw.hardware.types import Inventory
from llmgw.hardware.watch import Watch
from llmgw.testing.fake_smi import FakeAnswer, FakeMachine, answers_for, write_fake_smi

from .support import A100, L40S

LINKED = FakeMachine((A100, A100), links=((0, 1),))
FAILS = {"topo -m": FakeAnswer("Failed to run topology matrix: Unknown Error\n", code=255)}
HANGS = {"topo -m": FakeAnswer("", end="hang")}


async def write(folder: Path, machine: FakeMachine, changed: dict[str, FakeAnswer]) -> Path:
    program = folder / "nvidia-smi"
    return await to_thread.run_sync(lambda: write_fake_smi(program, answers_for(machine) | changed))


def domains(found: Inventory) -> list[str | None]:
    return [card.nvlink_domain for card in found.cards]


async def test_links_that_were_known_hold_on_while_the_tool_cannot_tell_them(
    tmp_path: Path,
) -> None:
    program = await write(tmp_path, LINKED, {})
    watch = Watch(
        HardwareSettings(
            node="n1", backend="nvidia-smi", nvidia_smi=str(program), timeout_seconds=2
        )
    )
    first = await watch.look()
    assert None not in domains(first)
    assert first.warnings == ()
    for changed in (FAILS, HANGS):
        await write(tmp_path, LINKED, changed)
        # A sample does not ask for links at all, so nothing fails.
        assert shape(await watch.sample()) == shape(first)
        found = await watch.look()
        assert domains(found) == domains(first)
        assert "the NVLink topology is that of an earlier look" in found.warnings
        assert shape(await watch.sample()) == shape(found), "samples say what the look said"
        await write(tmp_path, LINKED, {})
        assert shape(await watch.look()) == shape(first)

    # Links that are gone are gone, and those of other cards are not believed of these.
    await write(tmp_path, FakeMachine((A100, A100)), {})
    assert domains(await watch.look()) == [None, None]
    await write(tmp_path, LINKED, {})
    await watch.look()
    await write(tmp_path, FakeMachine((A100, A100, L40S)), FAILS)
    assert domains(await watch.sample()) == [None, None, None]
