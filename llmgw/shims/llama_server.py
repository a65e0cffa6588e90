"""xllamacpp's server in a process of its own, with the command line of `llama-server`.

`python -m llmgw.shims.llama_server -m FILE --alias NAME --host HOST --port PORT …`. It stands in
where no `llama-server` binary runs, and takes the arguments that `llmgw.engines.llama_cpp` builds
and the common ones of an operator; any other ends it with exit code 1 and a line that says so.

It is not the whole of llama-server: the port opens only when the model is loaded, so that
`/health` never answers 503. SIGTERM or SIGINT ends it with exit code 0; while a model loads, the
signal ends it at once, as it does any program.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    """Ends with exit code 1, as llama-server does, and names this program in the reason."""

    def error(self, message: str) -> NoReturn:
        self.exit(
            1,
            f"llama_server shim: {message}\n"
            "This node serves llama.cpp through xllamacpp, which takes only the common arguments; "
            "install a llama-server binary for the others.\n",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal comes; return the exit code."""
    asked = _parser().parse_args(arguments)
    if importlib.util.find_spec("xllamacpp") is None:
        return _fail("the package xllamacpp is not installed; pip install 'llmgw[llamacpp]'")
    import xllamacpp

    try:
        server = xllamacpp.Server(_parameters(asked))
    except RuntimeError as error:  # it has said why on standard error already
        return _fail(f"the server did not start: {error}")
    sys.stderr.write(f"llama_server shim: listening on {server.listening_address}\n")
    sys.stderr.flush()
    _wait_for_signal()
    del server  # stops its threads and closes the port
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="llama_server shim", allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True, help="a file; it downloads nothing")
    parser.add_argument("-a", "--alias")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("-c", "--ctx-size", type=int)
    parser.add_argument("-np", "--parallel", type=int)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("-b", "--batch-size", type=int)
    parser.add_argument("-ub", "--ubatch-size", type=int)
    parser.add_argument("-n", "--n-predict", type=int)
    parser.add_argument("-ngl", "--n-gpu-layers", type=int)
    parser.add_argument("--device", choices=["none"], help="for the processor")
    parser.add_argument("--split-mode", choices=["none", "layer", "row"])
    parser.add_argument("--chat-template")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--embedding", "--embeddings", action="store_true")
    parser.add_argument("--jinja", action="store_true", help="always on")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--no-ui", "--no-webui", action="store_true", help="there is none")
    return parser


def _parameters(asked: argparse.Namespace) -> object:
    """Return xllamacpp's parameters; what was not asked for keeps its default."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = asked.model
    wanted = {
        "hostnames": [asked.host],
        "port": asked.port,
        "model_alias": {asked.alias} if asked.alias else None,
        "n_ctx": asked.ctx_size,
        "n_parallel": asked.parallel,
        "n_batch": asked.batch_size,
        "n_ubatch": asked.ubatch_size,
        "n_predict": asked.n_predict,
        "n_gpu_layers": 0 if asked.device == "none" else asked.n_gpu_layers,
        "chat_template": asked.chat_template,
        "endpoint_metrics": asked.metrics or None,
        "embedding": asked.embedding or None,
        "offline": asked.offline or None,
    }
    for name, value in wanted.items():
        if value is not None:
            setattr(parameters, name, value)
    if asked.threads is not None:
        parameters.cpuparams.n_threads = asked.threads
        parameters.cpuparams_batch.n_threads = asked.threads
    if asked.split_mode is not None:
        mode = f"LLAMA_SPLIT_MODE_{asked.split_mode.upper()}"
        parameters.split_mode = getattr(xllamacpp.llama_split_mode, mode)
    return parameters


def _wait_for_signal() -> None:
    """Sleep until SIGTERM or SIGINT, whichever thread the kernel hands it to.

    The server's threads belong to C++ code and do not block signals, so that `signal.pause` in
    this thread could miss one; the interpreter's wake-up descriptor cannot.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)
        reader.recv(1)
        signal.set_wakeup_fd(-1)


def _fail(message: str) -> int:
    sys.stderr.write(f"llama_server shim: {message}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
