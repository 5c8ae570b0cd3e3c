"""The ``options:`` of a text2text model: keys, units, ranges and defaults.

Standard library only: the generator loads this file to check models.yaml, and the server loads it
to read ``model.json``. What means the same as for text-generation is described there.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.runtime.option import above_limit, option, step_watchdog, unload_grace
from hf_triton.text_generation.options import same_option


@dataclass(frozen=True)
class Options:
    # Read by generator/spec/task_folders.py.
    STREAMS = QUANTIZES = True
    PACKAGES = ("text_generation",)
    LOAD = "text2text_generation.text2text_loading:load_text2text"
    SERVE = "text_generation.reception:Reception"

    prefix: str | None = option(
        None,
        "text put before every input, such as 'summarize: ' for T5; default: the "
        "prefix of task_specific_params, else of the model's config.json, else none",
    )
    task_specific_params: str | None = option(
        None,
        "name of an entry in task_specific_params of the model's config.json, such as "
        "summarization; its prefix and generation settings are used; default: none",
    )
    source_lang: str | None = option(
        None,
        "source language of requests that name none, as the model writes it (en, "
        "en_XX, eng_Latn); default: the tokenizer's own",
    )
    target_lang: str | None = option(
        None,
        "target language of requests that name none; default: the model's own; where "
        "the model has none, each request must name one",
    )
    truncation: bool = option(
        False,
        "true cuts an input that is too long, false refuses it; a request's truncate "
        "overrides this",
    )
    num_beams: int = option(
        1,
        "above 1: beam search with so many beams, which can't be streamed or sampled, "
        "unless a request sets beam_width 1; default: greedy, even where the model's "
        "generation config has more beams",
        unit="beams",
        least=1,
        most=64,
    )
    max_model_len: int | None = option(
        None,
        "longest input, and longest output; default: the tokenizer's or the model's own limit",
        unit="tokens",
        least=2,
    )
    max_num_seqs: int | None = option(
        None,
        "sequences generated at once; each beam counts as one; default: 128, or as "
        "many as fit in the KV cache; with num_beams 32",
        unit="sequences",
        least=1,
        most=1024,
    )
    max_queue_size: int = same_option("max_queue_size")
    kv_cache_gib: float | None = option(
        None,
        "memory for keys and values of inputs and outputs, where num_beams is 1; "
        "default: what max_num_seqs x max_model_len needs, at most half of the free memory "
        "(CPU) or 90 % of it (GPU)",
        unit="GiB",
        above=0,
    )
    default_max_tokens: int | None = option(
        None,
        "output length of a request that does not set max_tokens; default: that of "
        "the model's generation config, else 128",
        unit="tokens",
        least=1,
    )
    default_timeout_ms: int | None = same_option("default_timeout_ms")
    max_timeout_ms: int | None = same_option("max_timeout_ms")
    max_grammar_s: float = same_option("max_grammar_s")
    unload_grace_s: float = unload_grace()
    watchdog_s: float = step_watchdog()

    def problems(self) -> list[tuple[str, str]]:
        return [
            *above_limit(self, "num_beams", "max_num_seqs"),
            *above_limit(self, "default_timeout_ms", "max_timeout_ms"),
        ]
