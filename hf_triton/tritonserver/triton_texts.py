"""Texts of Triton and the releases that have them; everything that matches such texts is here.

Read off 24.10 (2.51, which tests run on) and, where it says otherwise, off its sources of 26.08.
"""

from __future__ import annotations

import re
import time

# The states in its index (core/src/status.cc).
READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"

# The reason of a load whose Python process ended meanwhile.
PROCESS_DIED = "its Python process died while loading (out of memory?)"
_DIED = "is not healthy"  # "Stub process 'm_0_0' is not healthy."
NOT_FOUND = re.compile(r"unknown model|is not found", re.IGNORECASE)
# Texts by Triton, a front and a router about a model whose process has died, or is not back.
AWAY = re.compile(
    rf"went away before it answered|{_DIED}|no available versions|no engine runs"
    r"|is being unloaded|engine \S+ can't be reached|no connection to Triton|is not ready"
    r"|stopped accepting|unknown model: '[^']*' is not found|tritonserver does not answer"
    r"|stub process|shutting down|server shutdown",
    re.IGNORECASE,
)

# A Python model's exception ends in the place it came from, over several lines.
_TRACEBACK = re.compile(r"\s*\n\s*At:\n.*", re.DOTALL)
_PREFIXES = re.compile(
    r"load failed for model '[^']*': |ensemble '[^']*' depends on '[^']*' which has no loaded "
    r"version\. Model '[^']*' loading failed with error: |version \d+ is at UNAVAILABLE state: "
    r"|Internal: |(c_python_backend_utils\.)?TritonModelException: "
)
# core/src/model_config_utils.cc, ValidateInstanceGroup: it lists what there is, or nothing.
_NO_SUCH_GPU = re.compile(
    r"specifies invalid or unsupported gpu id (\d+)\. GPUs with .* are:([ \d,]*)"
)
_NO_GPUS = "has kind KIND_GPU but no GPUs are available"
_NO_BACKEND = re.compile(r"unable to find backend library for backend '([^']*)'")

# Lines of its log that say nothing to the reader.
NOISE = re.compile(
    r"evhtp\.c:.*NODELAY NOT SUPPORTED"  # of Unix sockets, which need none
    r"|DCGM unable to start|NVML|CudaDriverHelper has not been initialized"
    r"|Unable to allocate pinned system memory|CUDA memory pool disabled"
)
LOAD_FAILED = re.compile(
    r"failed to load '|load failed for model|Failed to create instance"
    r"|Failed to initialize Python stub"
)
# From 26.04 on a stub aborts when its model is unloaded, after all has been done.
ABORT, AT_THE_END = "Fatal Python error: ", "Python runtime state: finalizing"
# core/src/model_repository_manager/model_lifecycle.cc: a line for each version that a load begins
# with, and one at its end, also where the version before goes on serving and the index is silent.
_LOAD_BEGINS = re.compile(r'model_lifecycle\.cc:\d+\] "?loading: (.+):(\d+)"?$')
_LOAD_ENDS = re.compile(
    r"model_lifecycle\.cc:\d+\] \"?(?:successfully loaded|failed to load) '(.+)'\"?$"
)


class Loads:
    """The loads in Triton's log, by any client."""

    def __init__(self) -> None:
        # Triton's models and their versions, each with the time of the machine's clock.
        self.under_way: dict[tuple[str, str], float] = {}

    def follow(self, line: str) -> None:
        if begins := _LOAD_BEGINS.search(line):
            self.under_way[begins[1], begins[2]] = time.clock_gettime(time.CLOCK_BOOTTIME)
        elif ends := _LOAD_ENDS.search(line):
            for version in [one for one in self.under_way if one[0] == ends[1]]:
                del self.under_way[version]


def one_line(error: str) -> str:
    """The reason in a load error, without Triton's prefixes and the traceback's places."""
    text = _TRACEBACK.sub("", _PREFIXES.sub("", error))
    if "failed to poll from model repository" in text:
        text = "its folder or config.pbtxt can't be read (see the log above)"
    if missing := _NO_BACKEND.search(text):
        who = "NVIDIA's container has"
        if missing[1] == "vllm":
            who = (
                "NVIDIA's vLLM container (tritonserver:YY.MM-vllm-python-py3) has; here set "
                "options: {engine: vllm} in models.yaml"
            )
        text = f"this tritonserver has no backend '{missing[1]}'; {who}"
    if gpu := _NO_SUCH_GPU.search(text):
        usable = gpu[2].strip(" ,")
        only = f"of the GPUs here Triton can use only {usable}"
        there = only if usable else "Triton finds none here"
        asked = f"instance_group asks for GPU {gpu[1]}"
        text = f"{asked}, and {there}: change gpus, or use KIND_CPU"
    if _NO_GPUS in text:
        text = "instance_group asks for KIND_GPU, and Triton finds no GPU here: use KIND_CPU"
    if _DIED in text:
        text = PROCESS_DIED
    return " ".join(text.split()).rstrip(" ;") or "no reason given"
