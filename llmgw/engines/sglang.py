"""SGLang: `sglang serve` for Hugging Face folders and repositories.

Pure: command line, environment, health and last words. Cards are given by index in PCI order,
as for vLLM, since SGLang shares code that reads CUDA_VISIBLE_DEVICES as numbers.
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
    hub_environment,
    judge_status,
    meeting_point,
    memory_share,
)
from llmgw.engines.devices import device_environment, on_processor
from llmgw.engines.failures import CUDA_FAILURES, HOST_FAILURES

_STATIC_SHARE = 0.88
"""Of an entry's memory. SGLang's fraction covers weights and KV cache only; activations and
CUDA graphs come on top of it and must fit in what the entry asked for, too."""

_LARGEST_FRACTION = 0.95

_ADDRESS = "llmgw chooses the address and the port"
_SOURCE = "write `source` instead"
_SPLIT = "write `tp`, `pp` or `nodes` instead"

_RESERVED = {
    "--host": _ADDRESS,
    "--port": _ADDRESS,
    "--model": _SOURCE,
    "--model-path": _SOURCE,
    "--revision": "write `revision` instead",
    "--served-model-name": "the model is served under the entry's `name`",
    "--context-length": "write `context` instead",
    "--max-running-requests": "write `parallel` instead",
    "--tp": _SPLIT,
    "--tp-size": _SPLIT,
    "--tensor-parallel-size": _SPLIT,
    "--pp-size": _SPLIT,
    "--pipeline-parallel-size": _SPLIT,
    "--nnodes": _SPLIT,
    "--node-rank": _SPLIT,
    "--base-gpu-id": "llmgw chooses the devices from `class` and `gpus`",
    "--dist-init-addr": _ADDRESS,
    "--mem-fraction-static": "write `memory` or `gpu_memory_fraction` instead",
    "--kv-cache-dtype": "write `kv_cache_dtype` instead",
    "--api-key": "a command line can be read by everybody on the node; leave it out, since the "
    "engine listens on an address that only the gateway reaches",
}

_FAILURES = (
    KnownFailure(
        r"invalid literal for int\(\) with base 10: '(?:MIG|GPU)-",
        "this version of SGLang cannot open a device by its UUID, and so no MIG instance",
        "serve the model on a whole card, or use llama.cpp on the instance",
    ),
    KnownFailure(
        r"(?i)is not divisible by .*(?:tp|tensor)|heads .* must be divisible",
        "the model's attention heads cannot be shared evenly by that many cards",
        "choose a `tp` that divides the model's number of attention heads (1, 2, 4 or 8 fit most)",
        everywhere=True,
    ),
    KnownFailure(
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "the weights leave too little of the device's memory for the context",
        "lower `context` or `parallel`, or raise `memory`",
    ),
    KnownFailure(
        r"error: unrecognized arguments|error: argument ",
        "SGLang does not know an argument, or not with that value",
        "correct `args` in the catalog, or install the version of SGLang that knows them",
        everywhere=True,
    ),
    *CUDA_FAILURES,
    *HOST_FAILURES,
    KnownFailure(
        r"No such file or directory|does not appear to have a file named config\.json"
        r"|Can't load the configuration of|HFValidationError: Repo id must"
        r"|Cannot find any model weights with",
        "the model folder is not there or holds no model",
        "check `source`: the path must exist on the node that runs the replica",
    ),
)


class Sglang:
    """See the module. One instance, `ENGINE`."""

    name = "sglang"
    programs: tuple[str, ...] = ("sglang",)
    failures: tuple[KnownFailure, ...] = _FAILURES
    reserved_args: Mapping[str, str] = _RESERVED
    gpus_mean: Literal["tp", "pp"] = "tp"
    spans_nodes = True
    tp_divides_heads = True
    takes_fraction = True
    cache_dtypes: tuple[str, ...] = ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1")
    splits_cache = False
    cards_by: Literal["uuid", "index"] = "index"
    instances = InstanceSupport(why="it may read CUDA_VISIBLE_DEVICES as numbers, as vLLM does")
    names_model = True
    request_counts: RequestCounts | None = RequestCounts(
        "/metrics",
        ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
        moving=(
            *("sglang:generation_tokens_total", "sglang:prompt_tokens_total"),
            *("sglang:token_usage", "sglang:num_running_reqs"),
        ),
    )

    def launch(self, request: LaunchRequest) -> Launch:
        """Return the command line of `sglang serve` for `request`."""
        entry = request.entry
        argv = (
            *request.program,
            *("serve", "--model-path", entry.source or "", "--served-model-name", entry.name),
            *("--host", request.host, "--port", str(request.port)),
            *_model_arguments(entry),
            *_node_arguments(request),
            *_memory_arguments(request),
            *entry.args,
        )
        return Launch(
            argv=argv,
            env=hub_environment(entry)
            | entry.env
            | device_environment(request.grants, by=self.cards_by),
            health_path=entry.health_path or "/health",
        )

    def judge(self, answer: ProbeAnswer, was_ready: bool) -> Verdict:
        """It listens before it is warm, with 503; 200 only when it can generate."""
        return judge_status(answer, was_ready, loading=frozenset({503}))

    def explain(self, tail: str) -> KnownFailure | None:
        """Match the last lines of output."""
        return first_known(self.failures, tail)


def _model_arguments(entry: Entry) -> tuple[str, ...]:
    wanted = {
        "--revision": entry.revision,
        "--context-length": entry.context,
        "--max-running-requests": entry.parallel,
        "--tp-size": entry.tp if entry.tp > 1 else None,
        "--pp-size": entry.pp if entry.pp > 1 else None,
        "--kv-cache-dtype": entry.cache_key_dtype,
    }
    return flag_words(wanted)


def _node_arguments(request: LaunchRequest) -> tuple[str, ...]:
    if request.entry.nodes == 1:
        return ()
    meeting = ":".join(meeting_point(request))
    where = {"--nnodes": request.entry.nodes, "--node-rank": request.rank}
    return flag_words(where | {"--dist-init-addr": meeting})


def _memory_arguments(request: LaunchRequest) -> tuple[str, ...]:
    if on_processor(request.grants):
        return ("--device", "cpu")
    share = memory_share(request)
    fraction = request.entry.gpu_memory_fraction
    if fraction is None and share is not None:
        fraction = min(_LARGEST_FRACTION, _STATIC_SHARE * share)
    if fraction is None:
        return ()
    return ("--mem-fraction-static", f"{fraction:.4f}")


ENGINE = Sglang()
