"""Last words that several engines share, and what they mean.

Only data. Each engine module lists its own first and these after them; `explain` takes the first
pattern that matches, so the order within a list is from telling to vague.
"""

from __future__ import annotations

from llmgw.engines.base import KnownFailure

CUDA_FAILURES = (
    KnownFailure(
        r"(?i)CUDA out of memory|OutOfMemoryError|cudaErrorMemoryAllocation"
        r"|CUDA error: out of memory|cudaMalloc failed: out of memory|ErrorOutOfDeviceMemory",
        "the device has not enough free memory for the model",
        "raise `memory` in the catalog so that a larger device is chosen, lower `context` or "
        "`parallel`, or see which other process holds memory on the device",
        starved=True,
    ),
    KnownFailure(
        r"no kernel image is available for execution on the device"
        r"|is not compatible with the current PyTorch installation"
        r"|CUDA error: device kernel image is invalid",
        "the engine was not built for this generation of card",
        "install a build of the engine that supports the card, or name another class",
    ),
    KnownFailure(
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old"
        r"|system has unsupported display driver|cudaErrorInsufficientDriver",
        "the driver is older than the CUDA that the engine was built with",
        "update the NVIDIA driver of the node, or install a build for an older CUDA",
    ),
    KnownFailure(
        r"(?i)driver/library version mismatch",
        "the driver was updated and the one of before is still loaded",
        "reboot the node, or unload and load the NVIDIA modules",
    ),
    KnownFailure(
        r"uncorrectable ECC error encountered|(?i:GPU is lost|has fallen off the bus)"
        r"|unspecified launch failure|CUDA error: an illegal instruction",
        "the card failed while the engine used it",
        "run `llmgw doctor` on the node; `dmesg | grep -i xid` says what the driver saw",
    ),
    KnownFailure(
        r"(?i)No CUDA GPUs are available|no CUDA-capable device is detected"
        r"|CUDA error: invalid device ordinal|system not yet initialized",
        "the engine does not see the device that it was given",
        "run `llmgw doctor` on the node: a lost card, a MIG change or the fabric manager "
        "makes a device unusable while it is still listed",
    ),
)

HOST_FAILURES = (
    KnownFailure(
        r"error while loading shared libraries: \S+|cannot open shared object file",
        "a library that the engine was built with is not on the node",
        "install it, or a build of the engine that brings it; libcuda.so comes with the driver",
    ),
    KnownFailure(
        r"ModuleNotFoundError: No module named",
        "the engine's Python environment is not complete",
        "install the engine again in an environment of its own",
    ),
    KnownFailure(
        r"(?i)address already in use|couldn't bind HTTP server socket|errno 98\b",
        "another program listens on the port that the engine was given",
        "see who holds the port; the next start takes another one",
    ),
    KnownFailure(
        r"GatedRepoError|(?i:access to model .* is restricted|awaiting a review from the repo)",
        "the repository is gated and the node has no access to it",
        "accept the model's terms, set HF_TOKEN for the agent, and give the entry "
        "`env: {HF_TOKEN: {from_env: HF_TOKEN}}`",
    ),
    KnownFailure(
        r"RepositoryNotFoundError|RevisionNotFoundError|is not a valid model identifier",
        "there is no such repository or revision, or the node may not see it",
        "check `source` and `revision`; a private repository needs HF_TOKEN",
        everywhere=True,
    ),
    KnownFailure(
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|ConnectionError.*huggingface"
        r"|couldn't connect to 'https://huggingface\.co'|Failed to resolve '",
        "the model is not on the node and could not be downloaded",
        "copy the model to the node and give its path as `source`, or let the node reach the hub",
    ),
    KnownFailure(
        r"(?i)std::bad_alloc|cannot allocate memory|failed to allocate buffer.*CPU|oom-kill",
        "the node's own memory ran out",
        "use a smaller model or context, or a node with more memory",
    ),
    KnownFailure(
        r"No space left on device",
        "a disk of the node is full",
        "free space where models are cached and in /dev/shm",
    ),
)
