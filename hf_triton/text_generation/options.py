"""The ``options:`` of a model that generates text: keys, units, ranges and defaults.

Standard library only: the generator loads this file to check models.yaml, and the server loads it
to read ``model.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from hf_triton.runtime.option import above_limit, option, step_watchdog, unload_grace

# vLLM's arguments that models.yaml sets elsewhere, and where. All others keep vLLM's own names.
ELSEWHERE = {
    **{name: f"the model's {name}" for name in ("model", "revision", "dtype", "trust_remote_code")},
    **{name: f"options.{name}" for name in ("max_model_len", "max_num_seqs")},
    "kv_cache_memory_bytes": "options.kv_cache_gib",
    "hf_token": "HF_TOKEN in the environment: secrets don't belong in this file",
}
# vLLM's arguments that the engine sets itself: files come from the model's cache, and texts and
# their ends are handled as by the other engines.
DECIDED = (
    *("tokenizer", "tokenizer_revision", "skip_tokenizer_init", "code_revision", "download_dir"),
    *("served_model_name", "generation_config", "override_generation_config", "runner", "task"),
    *("disable_log_stats", "enable_log_requests", "disable_log_requests", "device", "device_ids"),
    *("stream_interval", "logprobs_mode", "max_logprobs"),
)
# The share of free memory that keys and values get where kv_cache_gib is not set; `apply` reads it
# too. A CPU's memory is shared with others; a GPU's must leave room for activations.
FREE_SHARE = {"cpu": 0.5, "cuda": 0.9}
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True)
class Options:
    """The options of one text-generation model. ``None``: decided when the model loads."""

    # Read by generator/spec/task_folders.py.
    STREAMS = ADAPTERS = QUANTIZES = True
    LOAD = "text_generation.generation_loading:load_engine"
    SERVE = "text_generation.reception:Reception"
    GONE: ClassVar[Mapping[str, str]] = {
        "prefix_cache_gib": "raise kv_cache_gib, whose free pages keep prefixes",
        "max_step_ms": "lower max_num_batched_tokens",
        **dict.fromkeys(
            ("prompt_lookup_max", "prompt_lookup_min"),
            "the last 2 to 4 tokens are looked up; leave it out",
        ),
    }

    engine: Literal["auto", "in_flight", "generate", "vllm"] = option(
        "auto",
        "in_flight: requests join and leave a running batch at every step; generate: "
        "padded batches through model.generate; auto: in_flight where it supports the model, "
        "else generate; vllm: vLLM, which has to be installed where the model runs",
    )
    max_model_len: int | None = option(
        None,
        "longest prompt plus output; default: the model's own limit, or what fits in memory: "
        "for 8 sequences (CPU) or one (GPU)",
        unit="tokens",
        least=2,
    )
    max_num_seqs: int | None = option(
        None,
        "sequences generated at once; default: 128 (CPU) or 512 (GPU), or as many of max_model_len "
        "as fit in the KV cache (CPU)",
        unit="sequences",
        least=1,
        most=1024,
    )
    max_num_batched_tokens: int | None = option(
        None,
        "most tokens computed in one step; longer prompts are prefilled in chunks; "
        "default: 512 on a CPU, 2048 to 8192 on a GPU by its memory, and at least max_num_seqs",
        unit="tokens",
        least=1,
        engines=("in_flight", "vllm"),
    )
    max_queue_size: int = option(
        1024,
        "requests that may wait beyond the running ones; more are refused with 503",
        unit="sequences",
        least=0,
    )
    kv_cache_gib: float | None = option(
        None,
        "memory for keys and values; default: what max_num_seqs x max_model_len needs, "
        "at most half of the free memory (CPU) or 90 % of it (GPU); in pages of 16 tokens (on a "
        "GPU 256), which sequences take as they grow",
        unit="GiB",
        above=0,
        engines=("in_flight", "vllm"),
    )
    prefix_cache: bool = option(
        True,
        "a prompt that begins like an earlier one reuses its keys and values; timing "
        "then reveals whether a prefix was cached",
        engines=("in_flight", "vllm"),
    )
    speculative_method: Literal["off", "ngram"] = option(
        "off",
        "how to draft tokens, which one step then verifies, where that is faster; ngram: look "
        "the last tokens up in prompt and output; what is generated stays the same",
        engines=("in_flight",),
    )
    num_speculative_tokens: int = option(
        8,
        "most tokens drafted for a sequence in a step; fewer where that is faster",
        unit="tokens",
        least=1,
        most=64,
        engines=("in_flight",),
    )
    default_max_tokens: int | None = option(
        None,
        "output length of a request that does not set max_tokens; default: max_new_tokens of the "
        "model's generation_config.json, else 128",
        unit="tokens",
        least=1,
    )

    default_timeout_ms: int | None = option(
        None,
        "time limit of a request that sets no timeout_ms; default: no limit",
        unit="milliseconds",
        least=1,
    )
    max_timeout_ms: int | None = option(
        None,
        "highest timeout_ms that a request may set; also the time limit of a request "
        "that sets none, unless default_timeout_ms is set",
        unit="milliseconds",
        least=1,
    )
    max_grammar_s: float = option(
        10.0,
        "how long a request's json_schema, regex or choice may take to compile; one "
        "that takes longer is refused",
        unit="seconds",
        above=0,
    )
    tool_parser: Literal[
        "auto",
        "json",
        "deepseek",
        "glm45",
        "harmony",
        "kimi_k2",
        "mistral",
        "phi4_mini",
        "pythonic",
        "qwen3_coder",
        "seed_oss",
    ] = option(
        "auto",
        "how the model writes calls of tools, for OpenAI's API; json: Hermes, Qwen, "
        "Llama 3, Granite; auto: as the marks in its chat template say",
    )
    reasoning_parser: Literal[
        "auto", "none", "think", "mistral", "seed", "cohere", "granite", "harmony"
    ] = option(
        "auto",
        "what begins and ends the model's reasoning; think: <think> and </think>; "
        "auto: as its chat template says",
    )
    unload_grace_s: float = unload_grace()
    watchdog_s: float = step_watchdog()

    vllm: dict[str, Any] | None = option(  # noqa: RUF009
        None, "with engine: vllm, arguments of vLLM's AsyncEngineArgs, such as tensor_parallel_size"
    )

    def problems(self) -> list[tuple[str, str]]:
        """Mistakes that only show in two fields together, each as (field, message)."""
        found = []
        if (
            self.engine != "vllm"
            and self.max_num_seqs is not None
            and self.max_num_batched_tokens is not None
            and self.max_num_batched_tokens < self.max_num_seqs
        ):
            message = (
                f"got {self.max_num_batched_tokens}, expected at least max_num_seqs "
                f"({self.max_num_seqs}): a step computes one token for each running sequence"
            )
            found.append(("max_num_batched_tokens", message))
        found += above_limit(self, "default_timeout_ms", "max_timeout_ms")
        if self.vllm is not None:
            found += [("vllm", message) for message in self._vllm_problems(self.vllm)]
            if self.vllm.get("enable_prefix_caching") and not self.prefix_cache:
                found.append(("prefix_cache", "got false, but vllm has enable_prefix_caching"))
        return found

    def _vllm_problems(self, given: dict[str, Any]) -> list[str]:
        if self.engine in ("in_flight", "generate"):
            return [f"got arguments for vLLM, but engine is {self.engine}; set engine: vllm"]
        return [
            *(f"{name}: set by {ELSEWHERE[name]}" for name in given if name in ELSEWHERE),
            *(f"{name}: decided by the engine" for name in given if name in DECIDED),
            *(
                f"{name}: got {size}, expected a whole number, at least 1"
                for name, size in given.items()
                if name in PARALLEL and (type(size) is not int or size < 1)
            ),
        ]


@dataclass(frozen=True)
class MediaOptions(Options):
    """The options of a model that reads images or sounds with its texts."""

    ADAPTERS = False
    PACKAGES = ("text_generation",)
    LOAD = "text_generation.generation_loading:load_media_engine"

    engine: Literal["auto", "in_flight", "generate"] = option(
        "auto",
        "in_flight: requests join and leave a running batch at every step; generate: "
        "padded batches through model.generate; auto: in_flight where it supports the model, "
        "else generate",
    )
    vllm: dict[str, Any] | None = option(  # noqa: RUF009
        None, "none: vLLM reads only texts here"
    )
    max_images: int = option(16, "most images of one prompt", unit="images", least=0)
    max_sounds: int = option(16, "most sounds of one prompt", unit="sounds", least=0)
    max_input_mib: float = option(
        32.0, "largest files of one prompt, all together as they are sent", unit="MiB", above=0
    )
    max_image_megapixels: float = option(
        64.0,
        "largest images of one prompt, all together; a small compressed file can be a huge image",
        unit="megapixels",
        above=0,
    )
    max_audio_s: float = option(
        600.0, "longest sounds of one prompt, all together", unit="seconds", above=0
    )

    def _vllm_problems(self, given: dict[str, Any]) -> list[str]:
        return ["got arguments for vLLM, which reads only texts here"]


_FIELDS = {field.name: field for field in fields(Options)}


def engine_options(given: Any, **own: Any) -> Options:
    """The engine's options for a task: those that the task's options have too, and its ``own``."""
    same = {name: getattr(given, name) for name in _FIELDS if hasattr(given, name)}
    return Options(**{**same, **own})


def same_option(name: str) -> Any:
    """A field of another task's options that is this one of ``Options``."""
    return field(default=_FIELDS[name].default, metadata=_FIELDS[name].metadata)
