"""Runs the tests on every Python from 3.11 up that this machine has; `make test-all` calls it.

Looks on PATH and among pyenv's versions, makes `build/venvs/pyX.Y` for each from the lock files,
and passes its own arguments on to pytest. Exit code 1 when one of them failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OLDEST = (3, 11)


def pythons() -> dict[tuple[int, int], Path]:
    """Return one interpreter for each version, the first that works, oldest version first."""
    found: dict[tuple[int, int], Path] = {}
    for path in _candidates():
        version = _version(path)
        if version is not None and version >= OLDEST:
            found.setdefault(version, path)
    return dict(sorted(found.items()))


def main(arguments: list[str]) -> int:
    """Run the tests on each, one after the other, and print one line for each at the end."""
    results: dict[str, str] = {}
    for (major, minor), interpreter in pythons().items():
        name = f"py{major}.{minor}"
        print(f"== {name}: {interpreter}", flush=True)
        results[name] = _run(interpreter, ROOT / "build" / "venvs" / name, arguments)
    for name, result in results.items():
        print(f"{name}: {result}")
    return 0 if results and set(results.values()) == {"passed"} else 1


def _candidates() -> Iterator[Path]:
    for folder in os.get_exec_path():
        yield from sorted(Path(folder).glob("python3.[0-9]*"))
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from sorted(pyenv.glob("versions/*/bin/python3"))


def _version(path: Path) -> tuple[int, int] | None:
    """Ask the interpreter itself: a name on PATH may be a shim that leads nowhere."""
    if path.name.endswith("-config"):
        return None
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [path, "-c", code], capture_output=True, text=True, check=True, timeout=20
        )
        major, minor = map(int, done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return major, minor


def _run(interpreter: Path, venv: Path, arguments: list[str]) -> str:
    make = [
        "make",
        "--no-print-directory",
        f"PYTHON={interpreter}",
        f"VENV={venv.relative_to(ROOT)}",
    ]
    if subprocess.run([*make, "setup"], cwd=ROOT, check=False).returncode != 0:
        return "could not be set up"
    tests = [str(venv / "bin" / "python"), "-m", "pytest", *arguments]
    done = subprocess.run(tests, cwd=ROOT, check=False)
    return "passed" if done.returncode == 0 else f"failed (pytest ended with {done.returncode})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
