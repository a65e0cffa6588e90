"""llama.cpp's `llama-server`: GGUF files on cards, MIG instances or the processor.

Pure: command line, environment, health and last words. Which program runs it on a node (a
`llama-server` binary, or xllamacpp's server in a process of its own) is found elsewhere; both
take the command line that is built here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from llmgw.catalog.entries import Entry
from llmgw.engines.base import (
    InstanceSupport,
    KnownFailure,
    Launch,
    LaunchRequest,
    ProbeAnswer,
    RequestCounts,
    Verdict,
    first_known,
    flag_words,
    judge_status,
    on_local_files,
    secret_in_env,
)
from llmgw.engines.devices import device_environment, on_processor
from llmgw.engines.failures import CUDA_FAILURES, HOST_FAILURES

_ALL_LAYERS = "999"
"""More layers than any model has. Older servers know no word for "all"."""

_CACHE_DTYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""What `--cache-type-k` and `--cache-type-v` take."""

_ADDRESS = "llmgw chooses the address and the port"
_SOURCE = "write `source` instead"
_TLS = "llmgw probes the engine without TLS and at the root path"
_DEVICES = "llmgw chooses the devices from `class`, `gpus` and `tp`"
_CACHE = "write `kv_cache_dtype` instead"

_RESERVED = {
    "--host": _ADDRESS,
    "--port": _ADDRESS,
    "--reuse-port": _ADDRESS,
    "-m": _SOURCE,
    "--model": _SOURCE,
    "-mu": _SOURCE,
    "--model-url": _SOURCE,
    "-hf": _SOURCE,
    "-hfr": _SOURCE,
    "--hf-repo": _SOURCE,
    "-dr": _SOURCE,
    "--docker-repo": _SOURCE,
    "--models-dir": "one engine serves one model; list each as an entry",
    "--models-preset": "one engine serves one model; list each as an entry",
    "-a": "the model is served under the entry's `name`",
    "--alias": "the model is served under the entry's `name`",
    "-c": "write `context` instead",
    "--ctx-size": "write `context` instead",
    "-np": "write `parallel` instead",
    "--parallel": "write `parallel` instead",
    "-ctk": _CACHE,
    "--cache-type-k": _CACHE,
    "-ctv": _CACHE,
    "--cache-type-v": _CACHE,
    "-dev": _DEVICES,
    "--device": _DEVICES,
    "--rpc": _DEVICES,
    "--api-prefix": _TLS,
    "--ssl-key-file": _TLS,
    "--ssl-cert-file": _TLS,
    "--metrics": "llmgw always sets it",
    "--api-key": secret_in_env("LLAMA_API_KEY"),
    "-hft": secret_in_env("HF_TOKEN"),
    "--hf-token": secret_in_env("HF_TOKEN"),
}

_FAILURES = (
    KnownFailure(
        r"failed to open GGUF file .*No such file or directory|model file does not exist",
        "the model file is not there",
        "check `source`: the path must exist on the node that runs the replica",
    ),
    KnownFailure(
        r"failed to open GGUF file .*Permission denied",
        "the agent's user may not read the model file",
        "give that user read permission on the file and its folders",
    ),
    KnownFailure(
        r"invalid magic characters|corrupted or incomplete|not within the file bounds"
        r"|gguf_init_from_\w+: failed to read",
        "the model file is no GGUF, or a download of it broke off",
        "download the file again and compare its size and checksum with the publisher's",
    ),
    KnownFailure(
        r"unknown model architecture|unknown (?:pre-)?tokenizer type|unsupported (?:GGUF )?version",
        "this build of llama.cpp is too old, or not made, for the model",
        "install a newer llama-server on the node",
    ),
    KnownFailure(
        r"(?:quantized V cache|V cache quantization) requires flash_attn"
        r"|quantized V cache was requested, but this requires Flash Attention",
        "the values of the KV cache can be quantised only with flash attention, which is off here",
        "leave `--flash-attn off` out of `args`, or write f16 for the value of `kv_cache_dtype`",
        everywhere=True,
    ),
    KnownFailure(
        r"error: invalid argument|error while handling argument"
        r"|takes only the common arguments",
        "llama-server does not know an argument, or not with that value",
        "correct `args` in the catalog, or install the version of llama-server that knows them",
        everywhere=True,
    ),
    *CUDA_FAILURES,
    *HOST_FAILURES,
    KnownFailure(
        r"exiting due to model loading error|failed to load model",
        "the model could not be loaded",
        "read the lines before this one; `llama-server -m FILE` on the node shows the same",
    ),
)


class LlamaCpp:
    """See the module. One instance, `ENGINE`."""

    name = "llama.cpp"
    programs: tuple[str, ...] = ("llama-server",)
    failures: tuple[KnownFailure, ...] = _FAILURES
    reserved_args: Mapping[str, str] = _RESERVED
    gpus_mean: Literal["tp", "pp"] = "pp"
    spans_nodes = False
    tp_divides_heads = False
    takes_fraction = False
    cache_dtypes: tuple[str, ...] = (
        "f32",
        "f16",
        "bf16",
        "q8_0",
        "q5_1",
        "q5_0",
        "q4_1",
        "q4_0",
        "iq4_nl",
    )
    splits_cache = True
    cards_by: Literal["uuid", "index"] = "uuid"
    instances = InstanceSupport(always=True)
    names_model = True
    request_counts: RequestCounts | None = RequestCounts(
        "/metrics",
        ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
        moving=(
            *("llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total"),
            *("llamacpp:n_decode_total", "llamacpp:requests_processing"),
        ),
    )

    def launch(self, request: LaunchRequest) -> Launch:
        """Return the command line of `llama-server` for `request`."""
        entry = request.entry
        offline = {"LLAMA_ARG_OFFLINE": "1"} if on_local_files(entry) else {}
        devices = device_environment(request.grants, by=self.cards_by, vulkan=True)
        argv = (
            *request.program,
            *("-m" if on_local_files(entry) else "-hf", entry.source or ""),
            *("--alias", entry.name, "--host", request.host, "--port", str(request.port)),
            "--metrics",
            *_size_arguments(entry),
            *_device_arguments(request),
            *entry.args,
        )
        return Launch(
            argv=argv,
            env=offline | entry.env | devices,
            health_path=entry.health_path or "/health",
        )

    def judge(self, answer: ProbeAnswer, was_ready: bool) -> Verdict:
        """503 while it loads with the port open, 200 when it serves."""
        return judge_status(answer, was_ready, loading=frozenset({503}))

    def explain(self, tail: str) -> KnownFailure | None:
        """Every failure to start ends with exit code 1: only the words tell them apart."""
        return first_known(self.failures, tail)


def _size_arguments(entry: Entry) -> tuple[str, ...]:
    """`context` is per request; llama-server's `-c` is shared by as many as `-np` says."""
    arguments: tuple[str, ...] = ()
    if entry.context is not None:
        arguments += ("-c", str(entry.context * (entry.parallel or 1)))
    if entry.parallel is not None:
        arguments += ("-np", str(entry.parallel))
    cache = {"--cache-type-k": entry.cache_key_dtype, "--cache-type-v": entry.cache_value_dtype}
    return arguments + flag_words(cache)


def _device_arguments(request: LaunchRequest) -> tuple[str, ...]:
    if on_processor(request.grants):
        return ("--device", "none", "-ngl", "0")
    split = ("--split-mode", "row") if request.entry.tp > 1 else ()
    return ("-ngl", _ALL_LAYERS, *split)


ENGINE = LlamaCpp()
