"""vLLM: `vllm serve` for Hugging Face folders and repositories.

Pure: command line, environment, health and last words. vLLM reads CUDA_VISIBLE_DEVICES as
numbers, so whole cards are given by index in PCI order; versions that do so cannot open a MIG
instance, and die with the words that `failures` explains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from llmgw.catalog.entries import Entry
from llmgw.engines.base import (
    KnownFailure,
    Launch,
    LaunchRequest,
    ProbeAnswer,
    Verdict,
    first_known,
    flag_words,
    hub_environment,
    judge_status,
    memory_share,
    secret_in_env,
)
from llmgw.engines.devices import device_environment, on_processor
from llmgw.engines.failures import CUDA_FAILURES, HOST_FAILURES

_LARGEST_FRACTION = 0.97
"""Of a card's memory: the driver and the CUDA context need the rest."""

_SHUTDOWN_MARGIN_SECONDS = 5
"""Between the end of vLLM's own drain and the moment when its group is killed."""

_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

_ADDRESS = "llmgw chooses the address and the port"
_SPLIT = "write `tp`, `pp` or `nodes` instead"
_TLS = "llmgw probes the engine without TLS and at the root path"

_RESERVED = {
    "--host": _ADDRESS,
    "--port": _ADDRESS,
    "--uds": _ADDRESS,
    "-m": "write `source` instead",
    "--model": "write `source` instead",
    "--revision": "write `revision` instead",
    "--served-model-name": "the model is served under the entry's `name`",
    "--max-model-len": "write `context` instead",
    "--max-num-seqs": "write `parallel` instead",
    "-tp": _SPLIT,
    "--tensor-parallel-size": _SPLIT,
    "-pp": _SPLIT,
    "--pipeline-parallel-size": _SPLIT,
    "--gpu-memory-utilization": "write `memory` instead",
    "--shutdown-timeout": "write `stop_seconds` instead",
    "--root-path": _TLS,
    "--ssl-keyfile": _TLS,
    "--ssl-certfile": _TLS,
    "--api-key": secret_in_env("VLLM_API_KEY"),
    "--hf-token": secret_in_env("HF_TOKEN"),
}

_FAILURES = (
    KnownFailure(
        r"invalid literal for int\(\) with base 10: '(?:MIG|GPU)-",
        "this version of vLLM cannot open a device by its UUID, and so no MIG instance",
        "serve the model on a whole card, use llama.cpp or SGLang on the instance, or install a "
        "vLLM that accepts UUIDs in CUDA_VISIBLE_DEVICES",
    ),
    KnownFailure(
        r"(?i)must be divisible by tensor parallel size|is not divisible by .*tensor"
        r"|attention heads .* must be divisible",
        "the model's attention heads cannot be shared evenly by that many cards",
        "choose a `tp` that divides the model's number of attention heads (1, 2, 4 or 8 fit most)",
    ),
    KnownFailure(
        r"larger than the maximum number of tokens that can be stored in KV cache"
        r"|No available memory for the cache blocks|KV cache is needed, which is larger than",
        "the weights leave too little of the device's memory for the context",
        "lower `context` or `parallel`, or raise `memory`",
    ),
    KnownFailure(
        r"Free memory on device .* is less than desired GPU memory utilization",
        "another process holds memory on the device",
        "see `llmgw ctl devices` for what occupies it; placement avoids it once it is seen",
    ),
    KnownFailure(
        r"unrecognized arguments: .*--shutdown-timeout",
        "this vLLM is older than 0.18 and cannot finish running requests when it is stopped",
        "install vLLM 0.18 or later",
    ),
    KnownFailure(
        r"vllm serve: error: |error: unrecognized arguments|error: argument ",
        "vLLM does not know an argument, or not with that value",
        "correct `args` in the catalog, or install the version of vLLM that knows them",
    ),
    KnownFailure(
        r"Model architectures? \[.*\] (?:are|is) not supported",
        "this version of vLLM does not serve models of this architecture",
        "install a newer vLLM, or use another engine",
    ),
    *CUDA_FAILURES,
    *HOST_FAILURES,
    KnownFailure(
        r"HeaderTooLarge|SafetensorError|MetadataIncompleteBuffer|Error while deserializing header",
        "a file of the model is corrupt, or a download of it broke off",
        "download the model again and compare checksums",
    ),
    KnownFailure(
        r"No such file or directory|does not appear to have a file named config\.json"
        r"|Can't load the configuration of|Invalid repository ID or local directory",
        "the model folder is not there or holds no model",
        "check `source`: the path must exist on the node that runs the replica",
    ),
)


class Vllm:
    """See the module. One instance, `ENGINE`."""

    name = "vllm"
    programs: tuple[str, ...] = ("vllm",)
    failures: tuple[KnownFailure, ...] = _FAILURES
    reserved_args: Mapping[str, str] = _RESERVED
    gpus_mean: Literal["tp", "pp"] = "tp"
    spans_nodes = True

    def launch(self, request: LaunchRequest) -> Launch:
        """Return the command line of `vllm serve` for `request`."""
        entry = request.entry
        argv = (
            *request.program,
            *("serve", entry.source or "", "--served-model-name", entry.name),
            *("--host", request.host, "--port", str(request.port)),
            *("--shutdown-timeout", str(_shutdown_seconds(entry))),
            *_model_arguments(entry),
            *_memory_arguments(request),
            *entry.args,
        )
        env = _QUIET | hub_environment(entry) | entry.env
        return Launch(
            argv=argv,
            env=env | device_environment(request.grants, by="index"),
            health_path=entry.health_path or "/health",
        )

    def judge(self, answer: ProbeAnswer, was_ready: bool) -> Verdict:
        """The port is closed while it loads; 503 says that the engine behind it died."""
        return judge_status(answer, was_ready)

    def explain(self, tail: str) -> KnownFailure | None:
        """The telling line is often far above the last traceback: pass a generous tail."""
        return first_known(self.failures, tail)


def _shutdown_seconds(entry: Entry) -> int:
    """How long vLLM may finish requests after SIGTERM; its default is to drop them at once."""
    return max(1, int(entry.stop_seconds) - _SHUTDOWN_MARGIN_SECONDS)


def _model_arguments(entry: Entry) -> tuple[str, ...]:
    wanted = {
        "--revision": entry.revision,
        "--max-model-len": entry.context,
        "--max-num-seqs": entry.parallel,
        "--tensor-parallel-size": entry.tp if entry.tp > 1 else None,
        "--pipeline-parallel-size": entry.pp if entry.pp > 1 else None,
    }
    return flag_words(wanted)


def _memory_arguments(request: LaunchRequest) -> tuple[str, ...]:
    """Keep vLLM to the entry's memory: by default it takes nine tenths of the whole card."""
    share = memory_share(request)
    if on_processor(request.grants) or share is None:
        return ()
    fraction = min(_LARGEST_FRACTION, share)
    return ("--gpu-memory-utilization", f"{fraction:.4f}")


ENGINE = Vllm()
