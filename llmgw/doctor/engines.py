"""Finds the engines of this machine and their versions, cheaply. `checks` calls it.

No engine is imported and none loads a model, but for the tiny one that `programs` tries a
llama-server with. A version that could only be had by starting Python with CUDA is read off the
package beside the program.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

from anyio import to_thread

from llmgw.engines.registry import ENGINES
from llmgw.errors import EngineUnavailable
from llmgw.hardware.running import Output, run
from llmgw.hardware.types import Inventory
from llmgw.programs import find_program
from llmgw.settings import Settings
from llmgw.views.findings import Finding
from llmgw.views.surroundings import EngineFact, engine_findings

ANSWER_SECONDS = 10.0
_LLAMA_VERSION = re.compile(r"^version: (.+)$", re.MULTILINE)
_LLAMA_DEVICE = re.compile(r"^  (\w+): ", re.MULTILINE)
_LLAMA_NO_GPU = ("BLAS", "CPU", "RPC")


async def look(settings: Settings, inventory: Inventory | None) -> list[Finding]:
    """Return the findings on every engine that has a program of its own."""
    facts = [await _fact(name, settings) for name, one in ENGINES.items() if one.programs]
    return engine_findings(facts, inventory)


async def _fact(name: str, settings: Settings) -> EngineFact:
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
    return EngineFact(name=name, program=program, version=version_beside, named=named)


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
