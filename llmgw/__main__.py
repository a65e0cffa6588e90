"""The program: the entry point of the package, and `python -m llmgw`.

llmgw starts its own parts as the latter, with the same interpreter.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the program and end the process."""
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is signal.default_int_handler:
        # Who is tired of waiting for imports reads no traceback: nothing is there to clean up yet.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from llmgw.cli.main import run

    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    run()


if __name__ == "__main__":
    main()
