"""vLLM: `vllm serve` for Hugging Face folders and repositories.

Pure: command line, environment, health and last words. vLLM reads CUDA_VISIBLE_DEVICES as
numbers, so whole cards are given by index in PCI order; versions that do so cannot open a MIG
instance (`Vllm.instances`), and die with words that its list of failures explains.
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
    secret_in_env,
)
from llmgw.engines.devices import device_environment
from llmgw.engines.failures import CUDA_FAILURES, HOST_FAILURES

_LARGEST_FRACTION = 0.97
"""Of a card's memory: the driver and the CUDA context need the rest."""

_SHUTDOWN_MARGIN_SECONDS = 5
"""Between the end of vLLM's own drain and the moment when its group is killed."""

_CACHE_DTYPES = (
    *("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"),
    *("nvfp4", "nvfp4_ds_mla", "nvfp4_4over6"),
    *("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"),
    *("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
)
"""What `--kv-cache-dtype` takes (vllm/config/cache.py). Older versions know fewer."""

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
    "--nnodes": _SPLIT,
    "--node-rank": _SPLIT,
    "--master-addr": _ADDRESS,
    "--master-port": _ADDRESS,
    "--headless": _SPLIT,
    "--gpu-memory-utilization": "write `memory` or `gpu_memory_fraction` instead",
    "--kv-cache-dtype": "write `kv_cache_dtype` instead",
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
        everywhere=True,
    ),
    KnownFailure(
        r"larger than the maximum number of tokens that can be stored in KV cache"
        r"|No available memory for the cache blocks|KV cache is needed, which is larger than",
        "the weights leave too little of the device's memory for the context",
        "lower `context` or `parallel`, or raise `memory`",
    ),
    KnownFailure(
        r"less than desired CPU memory utilization|less than requested memory for kv",
        "the processor's memory has less free than vLLM wants for the model and its KV cache",
        "lower `memory`, or give the KV cache its size in GiB: `env: {VLLM_CPU_KVCACHE_SPACE: 4}`",
    ),
    KnownFailure(
        r"greater than the derived max_model_len",
        "`context` is longer than the model was made for",
        "lower `context` to what the model's config.json says",
        everywhere=True,
    ),
    KnownFailure(
        r"Free memory on device .* is less than desired GPU memory utilization",
        "another process holds memory on the device",
        "see `llmgw ctl devices` for what occupies it; placement avoids it once it is seen",
        starved=True,
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
        everywhere=True,
    ),
    KnownFailure(
        r"Model architectures? \[.*\] (?:are|is) not supported"
        r"|Transformers does not recognize this architecture",
        "this version of vLLM does not serve models of this architecture",
        "install a newer vLLM, or use another engine",
    ),
    *CUDA_FAILURES,
    *HOST_FAILURES,
    KnownFailure(
        r"HeaderTooLarge|SafetensorError|MetadataIncompleteBuffer|Error while deserializing header"
        r"|is not a valid JSON file",
        "a file of the model is corrupt, or a download of it broke off",
        "download the model again and compare checksums",
    ),
    KnownFailure(
        r"No such file or directory|does not appear to have a file named config\.json"
        r"|Can't load the configuration of|Invalid repository ID or local directory"
        r"|HFValidationError: Repo id must|Cannot find any model weights with",
        "the model folder is not there or holds no model",
        "check `source`: the path must exist on the node that runs the replica",
    ),
    KnownFailure(
        r"Couldn't instantiate the backend tokenizer",
        "the model folder holds no tokenizer",
        "copy all files of the model, those of its tokenizer as well",
    ),
    KnownFailure(
        r"ValidationError: \d+ validation errors? for \w+",
        "vLLM refuses an argument, or what the model's config.json says",
        "see the line after this one in its output, and correct `args` or the model",
        everywhere=True,
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
    tp_divides_heads = True
    takes_fraction = True
    cache_dtypes: tuple[str, ...] = _CACHE_DTYPES
    splits_cache = False
    cards_by: Literal["uuid", "index"] = "index"
    instances = InstanceSupport(
        fails_through=(0, 20, 1), why="it reads CUDA_VISIBLE_DEVICES as numbers"
    )
    names_model = True
    request_counts: RequestCounts | None = RequestCounts(
        "/metrics",
        ("vllm:num_requests_running", "vllm:num_requests_waiting"),
        moving=(
            *("vllm:generation_tokens_total", "vllm:prompt_tokens_total"),
            *("vllm:kv_cache_usage_perc", "vllm:num_requests_running"),
        ),
    )

    def launch(self, request: LaunchRequest) -> Launch:
        """Return the command line of `vllm serve` for `request`."""
        entry = request.entry
        argv = (
            *request.program,
            *("serve", entry.source or "", "--served-model-name", entry.name),
            *("--host", request.host, "--port", str(request.port)),
            *("--shutdown-timeout", str(_shutdown_seconds(entry))),
            *_model_arguments(entry),
            *_node_arguments(request),
            *_memory_arguments(request),
            *entry.args,
        )
        env = _QUIET | hub_environment(entry) | entry.env
        return Launch(
            argv=argv,
            env=env | device_environment(request.grants, by=self.cards_by),
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
        "--kv-cache-dtype": entry.cache_key_dtype,
    }
    return flag_words(wanted)


def _node_arguments(request: LaunchRequest) -> tuple[str, ...]:
    """The first part serves; the others have no port of their own."""
    if request.entry.nodes == 1:
        return ()
    host, port = meeting_point(request)
    where: dict[str, str | int | None] = {
        "--nnodes": request.entry.nodes,
        "--node-rank": request.rank,
        "--master-addr": host.strip("[]"),
        "--master-port": port,
    }
    return (*flag_words(where), *(("--headless",) if request.rank else ()))


def _memory_arguments(request: LaunchRequest) -> tuple[str, ...]:
    """Keep vLLM to the entry's memory: by default it takes nine tenths of the whole device.

    Of the processor's memory, too, whatever the flag is called. There a size of the KV cache that
    the entry gives (VLLM_CPU_KVCACHE_SPACE) has the last word.
    """
    share = memory_share(request)
    fraction = request.entry.gpu_memory_fraction
    if fraction is None and share is not None:
        fraction = min(_LARGEST_FRACTION, share)
    if fraction is None:
        return ()
    return ("--gpu-memory-utilization", f"{fraction:.4f}")


ENGINE = Vllm()
