"""What nvidia-smi's failures mean, and what to do about each.

Pure: text and exit code in, a message out. The tool prints its errors on standard output, and one
exit code has several causes, so the text decides before the code. `smi` raises with the messages.
"""

from __future__ import annotations

import re

from llmgw.hardware.types import MISMATCH

_NO_DRIVER = (
    "cannot reach the NVIDIA driver: its kernel module is not loaded. Load it (modprobe nvidia) or"
    " install the driver for the running kernel"
)
_MISMATCH = (
    f"{MISMATCH}: the driver was upgraded under a running system. Reboot, or unload and load the"
    " nvidia modules"
)
_LOST = (
    "a card is lost and the tool answers for none: reset the card (nvidia-smi --gpu-reset) or"
    " reboot the machine"
)
_NO_ACCESS = (
    "the driver refused to start: a container lost its access to the cards, which a reload of"
    " systemd on its host causes. Restart the container"
)
_NO_PERMISSION = "this user may not read the cards: give it access to /dev/nvidia*"
_NO_CARDS = (
    "the driver is loaded and finds no card: check lspci, the power cables, and in a container"
    " that cards were given to it"
)
_NO_LIBRARY = (
    "the driver's library libnvidia-ml.so.1 is missing: install the driver's user-space part, or"
    " run the container with the NVIDIA runtime"
)

_BY_TEXT = {
    r"couldn't communicate with the NVIDIA driver": _NO_DRIVER,
    r"Driver/library version mismatch": _MISMATCH,
    r"Unable to determine the device handle": _LOST,
    r"Failed to initialize NVML: Unknown Error": _NO_ACCESS,
    r"Insufficient Permissions": _NO_PERMISSION,
    r"No devices were found": _NO_CARDS,
    r"libnvidia-ml|couldn't find .*library": _NO_LIBRARY,
}

_BY_CODE = {
    2: "it does not know the options -q -x: it is not nvidia-smi, or is far too old",
    3: "the driver does not support the query on this machine",
    4: _NO_PERMISSION,
    6: _NO_CARDS,
    8: "a card's power cables are not connected: attach them",
    9: _NO_DRIVER,
    10: "the kernel cannot handle a card's interrupts: see dmesg",
    12: _NO_LIBRARY,
    13: "its library is of another version than the tool: reinstall the driver",
    15: _LOST,
    18: _MISMATCH,
    255: "the driver reports an internal error: see dmesg for NVRM and Xid lines, then reboot",
}

_BY_NVML = {code: _BY_CODE[code] for code in (4, 6, 8, 9, 10, 12, 15, 18)} | {999: _NO_ACCESS}

_ADVICE_MISSING = (
    "install the NVIDIA driver, name the program in LLMGW_NVIDIA_SMI, or serve on the"
    " processor with LLMGW_BACKEND=cpu"
)


def meaning_of(code: int) -> str | None:
    """What a code of NVML means with which it does not start. The tool exits with most of them."""
    return _BY_NVML.get(code)


def explain(code: int | None, stdout: str, stderr: str = "") -> str:
    """The message for a run that gave no report: what happened, what was printed, what to do.

    `code` is `None` for a captured text, of which the exit code is not known.
    """
    said = f"{stdout}\n{stderr}"
    meaning = next((text for pattern, text in _BY_TEXT.items() if re.search(pattern, said)), None)
    if meaning is None and code:
        meaning = _BY_CODE.get(code, "it failed for no reason that llmgw knows: run it by hand")
    if meaning is None:
        meaning = "there is no report in it: it is not nvidia-smi's, or it is cut"
    exit_code = "" if code is None else f" (exit {code})"
    return f"nvidia-smi -q -x failed{exit_code}: {meaning}. It printed {_printed(said)}"


def missing(program: str) -> str:
    """The message for a program that is not there."""
    return f"the program {program!r} was not found: {_ADVICE_MISSING}"


def not_runnable(program: str, error: OSError) -> str:
    """The message for a program that is there and cannot be run."""
    return f"the program {program!r} cannot be run ({error.strerror}): {_ADVICE_MISSING}"


def hung(command: tuple[str, ...], seconds: float) -> str:
    """The message for a run that did not end in time."""
    return (
        f"{' '.join(command)!r} did not end within {seconds:g} seconds and was stopped: a card or"
        " the driver hangs. See dmesg for Xid lines; reset the card or reboot the machine"
    )


def in_flight(program: str) -> str:
    """The message for a run that was not started, since an earlier one cannot be ended."""
    return (
        f"an earlier run of {program!r} hangs in the driver and cannot be ended, so no other is"
        " started. See dmesg for Xid lines; reset the card or reboot the machine"
    )


def killed(command: tuple[str, ...], signal: int) -> str:
    """The message for a run that a signal ended."""
    return (
        f"{' '.join(command)!r} was killed by signal {signal} before it had finished: see dmesg"
        " whether the system ran out of memory, then run it again"
    )


def too_long(program: str, most_bytes: int) -> str:
    """The message for output without end."""
    return (
        f"{program!r} printed more than {most_bytes // 2**20} MiB, which no nvidia-smi does: check"
        " what LLMGW_NVIDIA_SMI names"
    )


def _printed(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return repr(" / ".join(lines[:2])[:200]) if lines else "nothing"
