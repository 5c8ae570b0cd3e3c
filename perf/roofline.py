"""The share of the tokens/s that a machine allows a decoder, by the roofline model
(https://doi.org/10.1145/1498765.1498785): how fast memory is read and matrices are multiplied here,
and the bytes and operations that a step can't do without. ``python -m perf.roofline`` prints the
figures of ``Run.roofline`` as JSON.

Counted from a config.json of Llama's shape: the weights once a step, each sequence's keys and
values once a step, the matrix products of every token. The limit is never reached; how near an
engine comes says how much is left to win. Another model, or a load whose tokens are not counted,
has no share.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from generator.errors import GeneratorError
from generator.python_modules import run_module
from generator.render import model_config
from generator.render.model_folder import VALUES_FILE
from generator.spec.triton_models import ENGINE_SUFFIX
from generator.yaml_file.regular_file import read_json
from perf.orphans import our_environment
from perf.report.schema import Load, Measurement, read_run, write_run
from perf.usage import gpu_names

_READ_BYTES = 2**29  # far beyond any cache
_ROWS, _SIDE = 512, 2048
_LEAST_RUNS, _LEAST_S = 3, 0.4
_TIMEOUT_S = 300.0
_KIND_CPU = 2  # inference.ModelInstanceGroup.Kind, model_config.proto
_ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Models of a gated MLP and plain or grouped attention, whose layers are all alike.
_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "granite")
_NEEDED_KEYS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    "vocab_size",
)


class NotMeasuredError(Exception):
    """The reason why there are no figures, in one line."""


def figures() -> dict[str, float]:
    """Measures the figures of ``Run.roofline`` in 10 to 20 seconds, in a child process, so that
    torch and its memory are released. Raises NotMeasuredError.
    """
    command, environment = run_module(__name__), our_environment()
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
        return dict(json.loads(done.stdout))
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        raise NotMeasuredError(lines[-1] if lines else f"exit code {error.returncode}") from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NotMeasuredError(str(error)) from error


def measure() -> dict[str, float]:
    """Takes about 5 seconds and 0.6 GiB; each figure is the best of several operators. A busy
    machine gives figures that are too low.
    """
    import torch

    def flop_per_s(dtype: torch.dtype) -> float:
        x, weight = torch.randn(_ROWS, _SIDE), torch.randn(_SIDE, _SIDE)
        x, weight = x.to(dtype), weight.to(dtype)
        seconds = _seconds(lambda: torch.nn.functional.linear(x, weight))
        ops = torch.ops.mkldnn
        with suppress(AttributeError, RuntimeError):  # oneDNN's, with the weight prepacked
            packed = ops._reorder_linear_weight(weight, None)  # noqa: SLF001
            pointwise = ops._linear_pointwise  # noqa: SLF001, what inductor emits
            seconds = min(seconds, _seconds(lambda: pointwise(x, packed, None, "none", [], "")))
        return 2 * _ROWS * _SIDE * _SIDE / seconds

    with torch.inference_mode():
        numbers = torch.ones(_READ_BYTES // 4)
        matrix, vector = numbers.view(-1, 4096), torch.ones(4096)
        reading_s = min(_seconds(numbers.sum), _seconds(lambda: matrix @ vector))
        return {
            "memory_gb_per_s": round(_READ_BYTES / reading_s / 1e9, 3),
            "float32_gflop_per_s": round(flop_per_s(torch.float32) / 1e9, 3),
            "bfloat16_gflop_per_s": round(flop_per_s(torch.bfloat16) / 1e9, 3),
        }


def _seconds(run: Callable[[], object]) -> float:
    """The shortest of several runs."""
    run()
    best, spent, runs = float("inf"), 0.0, 0
    while runs < _LEAST_RUNS or spent < _LEAST_S:
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        best, spent, runs = min(best, took), spent + took, runs + 1
    return best


@dataclass(frozen=True)
class Decoder:
    """A served model of Llama's shape. ``parameters`` counts its layers' matrix products, ``head``
    the output layer; ``attention`` is layers x heads x head size, ``kept`` the numbers cached for a
    token. ``dtype`` is the dtype of computation, ``weight_bytes`` the bytes of an unrounded weight.
    ``max_num_seqs`` bounds the batch, ``window`` the tokens of context, where set.
    """

    parameters: int
    head: int
    attention: int
    kept: int
    dtype: str = "float32"
    weight_bytes: int = 4
    max_num_seqs: int | None = None
    window: int | None = None

    def tokens_per_s_limit(
        self, machine: Mapping[str, float], lengths: Lengths, sequences: int
    ) -> float:
        """The machine's limit of output tokens/s, all sequences together; memory access and
        arithmetic overlap. float16 is computed as float32 on processors.
        """
        tokens = sequences * (
            1 + lengths.prompt / lengths.output
        )  # operations of a step, prompts included
        flop: float = 2 * (tokens * self.parameters + sequences * self.head)
        flop += 4 * tokens * lengths.context * self.attention
        num_bytes: float = (self.parameters + self.head) * self.weight_bytes
        num_bytes += sequences * lengths.context * self.kept * _ITEM_SIZES[self.dtype]
        kind = "bfloat16" if self.dtype == "bfloat16" else "float32"
        computing_s = flop / machine[f"{kind}_gflop_per_s"] / 1e9
        return sequences / max(num_bytes / machine["memory_gb_per_s"] / 1e9, computing_s)


@dataclass(frozen=True)
class Lengths:
    """Mean lengths, in tokens, of a load's prompts, answers and context per token."""

    prompt: float
    output: float
    context: float

    @classmethod
    def of(cls, load: Load) -> Lengths | None:
        """Parses a Load's labels: ``32``, ``8-64``, ``8/16/32``; None for other ones. A generated
        token's context is its prompt and, on average, half of the answer, weighted by the answers'
        lengths.
        """
        prompts, outputs = _moments(load.prompt_tokens), _moments(load.output_tokens)
        if prompts is None or outputs is None:
            return None
        (prompt_mean, _), (output_mean, output_square) = prompts, outputs
        return cls(prompt_mean, output_mean, prompt_mean + output_square / 2 / output_mean)


def _moments(label: str) -> tuple[float, float] | None:
    """The mean of the lengths, and of their squares."""
    low, dash, high = label.partition("-")
    numbers = (low, high) if dash else tuple(label.split("/"))
    if not all(each.isascii() and each.isdecimal() and int(each) for each in numbers):
        return None
    values = [int(each) for each in numbers]
    mean = sum(values) / len(values)
    if dash:  # uniform between the two
        return mean, mean**2 + ((values[1] - values[0] + 1) ** 2 - 1) / 12
    return mean, sum(each**2 for each in values) / len(values)


def decoder_in(folder: Path, dtype: str, max_num_seqs: int | None = None) -> Decoder | None:
    """Reads the model from a folder's config.json, as served on a processor in ``dtype`` (``auto``:
    as stored; float16 becomes float32). None without config.json or for another shape.
    """
    try:
        config: Any = read_json(folder / "config.json")
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict) or config.get("model_type") not in _LLAMA_LIKE:
        return None
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if dtype == "auto":
        dtype = "float32" if stored == "float16" else stored
    known = dtype in _ITEM_SIZES and stored in _ITEM_SIZES
    right = all(isinstance(config.get(key), int) and config[key] > 0 for key in _NEEDED_KEYS)
    if "quantization_config" in config or not known or not right:
        return None
    hidden, mlp, layers, heads, vocabulary = (config[key] for key in _NEEDED_KEYS)
    kv_heads = config.get("num_key_value_heads") or heads
    width = config.get("head_dim") or hidden // heads
    return Decoder(
        parameters=layers * (2 * hidden * width * (heads + kv_heads) + 3 * hidden * mlp),
        head=hidden * vocabulary,
        attention=layers * heads * width,
        kept=2 * layers * kv_heads * width,
        dtype=dtype,
        weight_bytes=min(_ITEM_SIZES[dtype], _ITEM_SIZES[stored]),
        max_num_seqs=max_num_seqs,
        window=config.get("sliding_window"),
    )


def is_countable(load: Load) -> bool:
    """Whether the load states its texts' lengths in tokens and its number of callers."""
    return bool(load.concurrency) and Lengths.of(load) is not None


def share_of(
    machine: Mapping[str, float], decoder: Decoder | None, found: Measurement
) -> float | None:
    """The share, 0 to 1; None where the load's lengths or callers, the model, or the machine's
    ``figures`` are unknown.
    """
    load, lengths = found.load, Lengths.of(found.load)
    if not (machine and decoder and lengths and load.concurrency and found.output_tokens_per_s):
        return None
    if decoder.window and lengths.context > decoder.window:
        return None
    sequences = min(load.concurrency, decoder.max_num_seqs or load.concurrency)
    limit = decoder.tokens_per_s_limit(machine, lengths, sequences)
    return found.output_tokens_per_s / limit


@dataclass(frozen=True)
class Limits:
    """Decoders by model name, and the machine's figures."""

    machine: Mapping[str, float] = field(default_factory=dict)
    decoders: Mapping[str, Decoder] = field(default_factory=dict)

    def with_share(self, found: Measurement) -> Measurement:
        """Adds the share to a measurement, where there is one."""
        decoder = self.decoders.get(found.load.target)
        return replace(found, roofline_share=share_of(self.machine, decoder, found))


def limits_in(
    folder: Path, names: Sequence[str], repository: Path, files: Path | None = None
) -> Limits:
    """The machine's limits for the decoders among these models, measured once and kept in the run's
    ``folder``. ``files`` has each model's config.json, where known. Raises OSError.
    """
    decoders = decoders_of(names, repository, files)
    if not decoders:
        return Limits()
    run = read_run(folder)
    if not run.roofline:
        print("hf-triton: measuring what this machine allows a decoder", file=sys.stderr)
        try:
            run = replace(run, roofline=figures())
        except NotMeasuredError as error:
            note = f"the machine's limits were not measured: {error}"
            run = replace(run, notes=list(dict.fromkeys([*run.notes, note])))
        write_run(folder, run)
    return Limits(run.roofline, decoders)


def decoders_of(
    names: Sequence[str], repository: Path, files: Path | None = None
) -> dict[str, Decoder]:
    """The decoders in a repository that run on the processor and have a known limit, by name;
    models on a GPU are left out.
    """
    has_gpus = bool(names) and bool(gpu_names())
    found = {name: _served(name, repository, has_gpus, files) for name in dict.fromkeys(names)}
    return {name: decoder for name, decoder in found.items() if decoder is not None}


def _served(name: str, repository: Path, has_gpus: bool, files: Path | None) -> Decoder | None:
    public = name.removesuffix(ENGINE_SUFFIX)
    for folder in (repository / (public + ENGINE_SUFFIX), repository / public):
        try:
            values: Any = read_json(folder / VALUES_FILE)
            config: Any = model_config.parse((folder / "config.pbtxt").read_text(encoding="utf-8"))
        except (OSError, ValueError, GeneratorError):
            continue
        if not isinstance(values, dict) or values.get("task") != "text-generation":
            continue
        groups = list(config.instance_group)
        if has_gpus and not (groups and all(group.kind == _KIND_CPU for group in groups)):
            return None
        count = sum(max(1, group.count) for group in groups) or 1
        most = values.get("options", {}).get("max_num_seqs")
        files, dtype = files or _files(folder, values), str(values.get("dtype") or "auto")
        return decoder_in(files, dtype, most * count if most else None) if files else None
    return None


def _files(folder: Path, values: Mapping[str, Any]) -> Path | None:
    """The folder of config.json: the model's own, or the only snapshot in its cache."""
    if values.get("local"):
        return folder / str(values.get("model"))
    found = [path.parent for path in folder.glob("hf_cache/**/snapshots/*/config.json")]
    pinned = [path for path in found if path.name == values.get("revision")]
    return (pinned or found)[0] if len(pinned or found) == 1 else None


if __name__ == "__main__":
    print(json.dumps(measure()))
