"""A pretended engine: a program that answers HTTP on a port and misbehaves as it is told.

Run as a script (`command_of` in cluster.py writes the command line); it imports nothing of llmgw
or of the tests, so that it is up in a tenth of a second. Each start is written to a journal, and a
lock for each part of a replica shows when two engines run for one part, however briefly.

    engine_program.py FOLDER PORT [OPTION…]

    say=TEXT        prints TEXT first          exit=CODE     then exits at once
    child=group     has a child that lives on  child=session has one in a session of its own
    child=bare      has one without the engine's environment
    child=lost      has one that has neither, and child=mute one that has no output either
    ignore=term     takes no SIGTERM           ready=FILE    answers 503 until FILE is there
    health=STATUS   answers the health endpoint with STATUS
    gang=ADDRESS    is one part of several: part 0 waits there for the others before it is well,
                    the others come there, and each ends when it loses one of them
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

MEETING_SECONDS = 30.0

_MARKS_OF_TESTS = ("CLUSTER_UNDER_TEST", "TEST_RUN_OF_LLMGW")


def _note(folder: Path, name: str, text: str) -> None:
    """Add a line to a file in one write, so that two writers never mix."""
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def _claim(folder: Path) -> int:
    """Hold the lock of this part of this replica for as long as the process lives."""
    marker = os.environ.get("LLMGW_ENGINE", "by-hand:none:0")
    _, replica, part, *_ = marker.split(":")
    _note(folder, "starts", f"{os.getpid()} {marker}")
    lock = os.open(folder / f"{replica}-{part}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _note(folder, "doubled", f"{os.getpid()} {marker}")
    return lock


def _left_of_environment() -> dict[str, str]:
    """Return what tests find their processes by, and nothing of the engine's."""
    return {name: os.environ[name] for name in _MARKS_OF_TESTS if name in os.environ}


def _start_child(folder: Path, kind: str) -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    child = subprocess.Popen(
        [sys.executable, "-IS", "-c", script],
        start_new_session=kind in ("session", "lost", "mute"),
        env=_left_of_environment() if kind in ("bare", "lost", "mute") else None,
        stdout=subprocess.DEVNULL if kind == "mute" else None,
        stderr=subprocess.DEVNULL if kind == "mute" else None,
    )
    _note(folder, "children", str(child.pid))


def _status(options: dict[str, str]) -> str:
    if "ready" in options and not Path(options["ready"]).exists():
        return "503 Loading"
    return options.get("health", "200 OK")


def _serve(port: int, options: dict[str, str]) -> None:
    about = {"pid": os.getpid(), "model": os.environ.get("LLMGW_MODEL"), "env": dict(os.environ)}
    body = json.dumps(about).encode()
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                head = f"HTTP/1.1 {_status(options)}\r\nContent-Length: {len(body)}\r\n"
                connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)


def _come_to(host: str, port: int) -> socket.socket:
    """Reach the first part. It may be started later: as real engines do, ask again until then."""
    deadline = time.monotonic() + MEETING_SECONDS
    while True:
        try:
            return socket.create_connection((host, port), timeout=MEETING_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(0.02)


def _join(address: str) -> None:
    """Meet the other parts, and end when one of them is gone."""
    part, parts = int(os.environ["LLMGW_PART"]), int(os.environ["LLMGW_PARTS"])
    host, _, port = address.rpartition(":")
    if part:
        others = [_come_to(host, int(port))]
        others[0].settimeout(None)
    else:
        with socket.create_server((host, int(port))) as listener:
            others = [listener.accept()[0] for _ in range(parts - 1)]

    def watch(other: socket.socket) -> None:
        other.recv(1)
        print("a part is gone", flush=True)
        os._exit(7)

    for other in others:
        threading.Thread(target=watch, args=(other,), daemon=True).start()
    if part:
        threading.Event().wait()


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    options = dict(word.split("=", 1) for word in sys.argv[3:])
    lock = _claim(folder)
    if "say" in options:
        print(options["say"], flush=True)
    if "exit" in options:
        sys.exit(int(options["exit"]))
    if options.get("ignore") == "term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in options:
        _start_child(folder, options["child"])
    if "gang" in options:
        _join(options["gang"])
    _serve(port, options)
    os.close(lock)


if __name__ == "__main__":
    main()
