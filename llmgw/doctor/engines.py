"""Finds the engines of this machine, their versions, and whether they see its cards.

`checks` calls it. No engine loads a model, but for the tiny one that `programs` tries a
llama-server with, and that one is asked which devices it has. A version that could only be had by
starting Python with CUDA is read off the package beside the program. Where there are cards, the
PyTorch of the other engines is asked how many it sees, by the interpreter that runs the engine.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread
from msgspec.structs import replace

from llmgw.engines.registry import ENGINES
from llmgw.errors import EngineUnavailable
from llmgw.hardware.running import Output, run
from llmgw.hardware.types import Inventory
from llmgw.programs import find_program
from llmgw.settings import Settings
from llmgw.views.findings import Finding
from llmgw.views.surroundings import EngineFact, engine_findings

ANSWER_SECONDS = 10.0
SIGHT_SECONDS = 60.0
SAID_CHARACTERS = 200
FIRST_LINE_BYTES = 512
_LLAMA_VERSION = re.compile(r"^version: (.+)$", re.MULTILINE)
_LLAMA_DEVICE = re.compile(r"^  (\w+): ", re.MULTILINE)
_LLAMA_NO_GPU = ("BLAS", "CPU", "RPC")
_SIGHT = """\
import json, torch
found = {"count": torch.cuda.device_count(), "cuda": torch.version.cuda}
print("SIGHT " + json.dumps(found))
"""


class _Sight(msgspec.Struct):
    """What PyTorch says: how many devices it sees, and the CUDA it was built for, if for any."""

    count: int
    cuda: str | None = None


async def look(settings: Settings, inventory: Inventory | None) -> list[Finding]:
    """Return the findings on every engine that has a program of its own."""
    names = [name for name, one in ENGINES.items() if one.programs]
    facts: dict[str, EngineFact] = {}
    cards = inventory is not None and any(d.card is not None for d in inventory.devices)

    async def ask(name: str) -> None:
        facts[name] = await _fact(name, settings, cards=cards)

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(ask, name)
    return engine_findings([facts[name] for name in names], inventory)


async def _fact(name: str, settings: Settings, *, cards: bool) -> EngineFact:
    setting = ENGINES[name].programs[0].replace("-", "_")
    named = getattr(settings, setting, None) is not None
    try:
        words = await find_program(name, settings)
    except EngineUnavailable as error:
        return EngineFact(name=name, problem=str(error), named=named)
    program = " ".join(words)
    if words[0] == sys.executable:
        return EngineFact(name=name, program=program, version=_installed("xllamacpp"), named=named)
    if name == "llama.cpp":
        said = await _said(words[0], "--version")
        version = _LLAMA_VERSION.search(said)
        listed = await _said(words[0], "--list-devices")
        lists = tuple(d for d in _LLAMA_DEVICE.findall(listed) if not d.startswith(_LLAMA_NO_GPU))
        return EngineFact(
            name=name,
            program=program,
            version=version[1] if version else None,
            named=named,
            lists=lists if "Available devices" in listed else None,
        )
    version_beside = await to_thread.run_sync(_beside, Path(words[0]), setting)
    fact = EngineFact(name=name, program=program, version=version_beside, named=named)
    return await _with_sight(fact, Path(words[0])) if cards else fact


async def _with_sight(fact: EngineFact, program: Path) -> EngineFact:
    """What the engine's own PyTorch says of the cards, which is what the engine would see."""
    interpreter = await to_thread.run_sync(_interpreter, program)
    if interpreter is None:
        return fact
    try:
        output = await run((interpreter, "-c", _SIGHT), timeout_seconds=SIGHT_SECONDS)
    except OSError as error:
        return replace(fact, blind=f"{interpreter} does not run: {error.strerror}")
    if output.ended != "exited":
        return replace(fact, blind=f"its PyTorch did not answer within {SIGHT_SECONDS:g} s")
    try:
        told = msgspec.json.decode(output.stdout.rpartition("SIGHT ")[2], type=_Sight)
    except msgspec.DecodeError:
        last = (output.stderr.strip() or output.stdout.strip() or "nothing").splitlines()[-1]
        return replace(fact, blind=f"its PyTorch says {last[:SAID_CHARACTERS]!r}")
    return replace(fact, sees=told.count, cuda=told.cuda)


def _interpreter(program: Path) -> str | None:
    """The Python that a script says it is run by, as scripts that pip makes do."""
    try:
        with program.open("rb") as file:
            line = file.readline(FIRST_LINE_BYTES)
    except OSError:
        return None
    match = re.fullmatch(rb"#!\s*(\S*/python[0-9.]*)\s*", line)
    return match[1].decode(errors="replace") if match else None


async def _said(*command: str) -> str:
    try:
        output: Output = await run(command, timeout_seconds=ANSWER_SECONDS)
    except OSError:
        return ""
    return f"{output.stdout}\n{output.stderr}"


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _beside(program: Path, package: str) -> str | None:
    """The version of the package that a program in `bin` belongs to, by its metadata's name."""
    prefix = program.resolve().parent.parent
    for folder in prefix.glob(f"lib/python3*/site-packages/{package}-*.dist-info"):
        return folder.name.removeprefix(f"{package}-").removesuffix(".dist-info")
    return None
