"""Checks and times models on an NVIDIA GPU, with random weights that are made on the spot:
``hf-triton perf gpu`` or, where there is torch and little else, ``python -m perf.lab.gpu``.

``check``: greedy tokens of each kind of decoder beside the CPU's ``generate``, decodes captured and
eager, over pages full of NaN, and after a step that failed. ``time``: tokens/s of two Llamas
beside what the card's bandwidth allows, and with torch.compile on their layers. On a CPU both run
with tiny models, whose times mean nothing. BAD is wrong; what is logged says which attention and
graphs were taken, and why not others. Exit code 1: something is wrong or failed.
"""

from __future__ import annotations

import argparse
import copy
import gc
import logging
import random
import re
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence as Items
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from typing import Any
from unittest.mock import patch

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hf_triton.runtime.devices.device import choose_attention_kernels, free_bytes
from hf_triton.runtime.errors import EngineError
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.engines.in_flight import in_flight_engine as in_flight
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.forward.paged import page_runner
from hf_triton.text_generation.forward.paged.attention import row_attention
from hf_triton.text_generation.options import Options
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence, Update

_VOCABULARY = 509
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads"),
)
SHAPES = {
    "135M": (49_152, 576, 1536, 30, 9, 3),  # SmolLM
    "7B": (32_000, 4096, 11_008, 32, 32, 32),  # Llama 2
    "tiny": (_VOCABULARY, 256, 512, 2, 4, 2),  # heads of 64, as models have them
}
_REST = {
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,  # tied, such models mostly repeat the last token
    **dict.fromkeys(("bos_token_id", "eos_token_id"), None),
}
_FULL, _LINEAR, _WINDOW = "full_attention", "linear_attention", {"sliding_window": 300}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": _WINDOW,
    "gemma2": {**_WINDOW, "head_dim": 64, "attn_logit_softcapping": 5.0},
    "gpt2": {"n_embd": 256, "n_head": 4, "n_layer": 2, "n_positions": 1024},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 64},
    "mixtral": {"num_local_experts": 4},
    "falcon": {"alibi": False, "num_kv_heads": 1},
    "bloom": {"n_head": 4, "n_layer": 2},
    "mamba2": {"num_heads": 8, "head_dim": 64, "state_size": 16, "n_groups": 2, "chunk_size": 16},
    "qwen3_next": {
        "head_dim": 64,
        "layer_types": [_LINEAR, _FULL],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "shared_expert_intermediate_size": 128,
    },
}
LENGTHS = (3, 40, 600, 1, 513, 255, 600, 300)  # the long ones begin alike
_ROOM = {"max_model_len": 700, "max_num_batched_tokens": 128, "kv_cache_gib": 0.1}
# Shares of the logits' range, as in the runners' trials: after a near tie texts may differ.
_NEAR = {torch.float32: 1e-3, torch.bfloat16: 8e-2}
_NUM_SEQS, _PROMPT, NUM_TOKENS = (1, 64, 256), 128, 64


class _Caller:
    streams = False
    request_id = ""

    def __init__(self) -> None:
        self.future: Future[list[int]] = Future()

    def take(self, update: Update) -> None:
        if update.error is not None:
            self.fail(update.error)
        elif update.finish_reason is not None:
            self.future.set_result(update.token_ids)

    def flush(self) -> None: ...

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def answers(engine: InFlightEngine, asked: Items[tuple[list[int], int]]) -> list[list[int]]:
    """The greedy tokens of each (prompt, number of tokens), all submitted at once."""
    callers = [_Caller() for _ in asked]
    engine.submit(
        [
            Sequence(prompt, SamplingParams(num_tokens), caller, Detokenizer(None, prompt))
            for (prompt, num_tokens), caller in zip(asked, callers, strict=True)
        ]
    )
    return [caller.future.result(timeout=300) for caller in callers]


@contextmanager
def engine_on(
    model: Any, device: torch.device, *, prepare: Any = lambda _: None, **options: Any
) -> Iterator[InFlightEngine]:
    """Makes the engine as the product does; pages are on for a CPU too."""
    setup = EngineSetup(
        model=model,
        options=Options(engine="in_flight", **options),
        device=device,
        eos_token_ids=frozenset(),
        num_threads=1,
        free_bytes=free_bytes,
        prepare=prepare,
        compiled=False,
    )
    engine = InFlightEngine(setup)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def random_model(family: str, shape: str, device: torch.device, dtype: torch.dtype) -> Any:
    sizes = dict(zip(_SIZES, SHAPES[shape], strict=True))
    config = AutoConfig.for_model(family, **{**sizes, **_REST, **FAMILIES[family]})
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def _load() -> list[tuple[list[int], int]]:
    draw = random.Random(1)
    head, *prompts = (
        [draw.randrange(1, _VOCABULARY) for _ in range(length)] for length in (512, *LENGTHS)
    )
    prompts = [[*head, *one[512:]] if len(one) > 512 else one for one in prompts]
    return [(prompt, draw.choice((2, 9, 20))) for prompt in prompts]


@torch.inference_mode()
def _differ(model: Any, asked: Any, got: Items[list[int]], near: float) -> list[int]:
    """The indexes of answers that differ from the model's ``generate`` by more than a near tie."""
    found = []
    for number, ((prompt, num_tokens), tokens) in enumerate(zip(asked, got, strict=True)):
        ids = torch.tensor([prompt])
        ways = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        more = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0}
        out = model.generate(ids, max_new_tokens=num_tokens, **ways, **more)
        pairs = zip(out.sequences[0, len(prompt) :].tolist(), tokens, out.logits, strict=True)
        for want, have, (logits,) in pairs:
            if want != have:
                gap, span = logits[want] - logits[have], logits.max() - logits.min()
                found += [number] * bool(gap > near * span)
                break
    return found


def check(device: torch.device, only: str | re.Pattern[str]) -> bool:
    ways = ("captured", "eager") if device.type == "cuda" else ("eager",)
    cases = [(one, way) for one in FAMILIES if re.search(only, one) for way in ways]
    num_right = sum(_report_case(_check_family, device, *case) for case in cases)
    print(f"{num_right} of {len(cases)} are right", flush=True)
    return num_right == len(cases)


def measure(device: torch.device, only: str | re.Pattern[str]) -> bool:
    print(f"a copy: {_bytes_per_s(device) / 1e9:,.0f} GB/s read and written", flush=True)
    shapes = [one for one in SHAPES if (one == "tiny") == (device.type == "cpu")]
    cases = [(one, way) for one in shapes if re.search(only, one) for way in ("plain", "compiled")]
    return sum(_report_case(_measure, device, *case) for case in cases) == len(cases)


def _report_case(run: Any, device: torch.device, *case: str) -> bool:
    """A failure is printed, and does not stop the other cases."""
    begun_s = time.monotonic()
    try:
        said, wrong = run(device, *case)
    except Exception as error:  # noqa: BLE001
        # Any exception of a kernel or a library is a result: it does not work here.
        said, wrong = "", f"{type(error).__name__}: {str(error)[:300]}"
    mark, took_s = "BAD " if wrong else "", time.monotonic() - begun_s
    print(f"{mark}{', '.join(case)}: {said} {wrong} [{took_s:.0f} s]", flush=True)
    gc.collect()  # an engine and its threads refer to each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return not wrong


def _check_family(device: torch.device, family: str, way: str) -> tuple[str, str]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    cpu, generator = torch.device("cpu"), torch.Generator().manual_seed(0)
    reference = random_model(family, "tiny", cpu, torch.float32)
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() > 1:  # so large that tokens vary
                parameter.normal_(0, 0.1, generator=generator)
    reference = reference.to(dtype).float()  # the numbers that the device has
    model, asked, wrong = copy.deepcopy(reference).to(device, dtype), _load(), []
    eager = patch.object(in_flight, "with_cuda_graphs", lambda runner, _: runner)
    with (
        eager if way == "eager" else nullcontext(),
        engine_on(model, device, max_num_seqs=4, **_ROOM) as engine,
    ):
        cache, said = engine.runner.cache, engine.runner.name
        for stored in (*cache.keys, *cache.values):
            stored.fill_(torch.nan)  # memory of earlier cases
        got = [*answers(engine, asked), *answers(engine, asked)]
        planted = patch.object(engine.runner, "forward", side_effect=RuntimeError("planted"))
        with planted, suppress(EngineError):
            answers(engine, asked[:1])
            wrong.append("a step that failed was answered")
        got += answers(engine, asked)
    bad = _differ(reference, asked * 3, got, _NEAR[dtype])
    wrong += [f"answers {bad} differ"] * bool(bad)
    return f"run by {said}", "; ".join(wrong)


def _bytes_per_s(device: torch.device) -> float:
    num_bytes, best_s = 2**30 if device.type == "cuda" else 2**26, float("inf")
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    for _ in range(5):
        begun_s = time.perf_counter()
        target.copy_(source)
        target[:1].cpu()  # waits
        best_s = min(best_s, time.perf_counter() - begun_s)
    return 2 * num_bytes / best_s


def _measure(device: torch.device, shape: str, way: str) -> tuple[str, str]:
    compiled, copied_s, found = way == "compiled", _bytes_per_s(device), []
    on_gpu, on_cpu = (torch.bfloat16, _NUM_SEQS), (torch.float32, _NUM_SEQS[:1])
    dtype, counts = on_gpu if device.type == "cuda" else on_cpu
    model = random_model("llama", shape, device, dtype)
    weights = sum(one.nbytes for one in model.parameters())
    weights -= model.get_input_embeddings().weight.nbytes
    more: dict[str, Any] = {"prepare": _compile_layers} if compiled else {}
    apart = patch.object(page_runner, "row_attention", torch.compiler.disable(row_attention))
    served = engine_on(model, device, max_num_seqs=max(counts), max_model_len=512, **more)
    with apart if compiled else nullcontext(), served as engine:
        per_token = sum(one.bytes_per_token for one in engine.runner.cache.shapes)
        for count in counts:
            draw = random.Random(count)
            prompts = [[draw.randrange(1, 500) for _ in range(_PROMPT)] for _ in range(count)]
            _took_s(engine, prompts, 2)
            took_s = _took_s(engine, prompts, NUM_TOKENS) - _took_s(engine, prompts, 1)
            read = weights + count * (_PROMPT + NUM_TOKENS / 2) * per_token
            tokens_s, bound = count * (NUM_TOKENS - 1) / took_s, count * copied_s / read
            of = f"{tokens_s / bound:.0%} of what reading allows"
            found.append(f"{count} sequences {tokens_s:,.0f} tokens/s, {of}")
        return f"{'; '.join(found)}; run by {engine.runner.name}", ""


def _compile_layers(model: Any) -> None:
    """Compiles what a layer computes beside attention over pages. Runs on the engine's thread,
    whose settings count, after the trials at load, whose caches would take many variants.
    """
    from torch._dynamo import config

    config.fail_on_recompile_limit_hit = True  # else the rest runs as it is
    for layer in model.model.layers:
        layer.compile(dynamic=True, backend="inductor" if model.device.type == "cuda" else "eager")


def _took_s(engine: InFlightEngine, prompts: Items[list[int]], num_tokens: int) -> float:
    begun_s = time.perf_counter()
    answers(engine, [(prompt, num_tokens) for prompt in prompts])
    return time.perf_counter() - begun_s


def main(arguments: Items[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "hf-triton perf gpu", description=__doc__, formatter_class=form
    )
    parser.add_argument("command", nargs="?", choices=("check", "time"), default="check")
    parser.add_argument(
        "--only", type=_pattern, default="", metavar="REGEX", help="models whose name it matches"
    )
    parser.add_argument(
        "--device", metavar="D", help="cuda:1, cpu (default: the first GPU, or cpu)"
    )
    args = parser.parse_args(arguments)
    known = [*FAMILIES] if args.command == "check" else [*SHAPES]
    if not any(re.search(args.only, name) for name in known):
        parser.error(f"--only: it matches none of {', '.join(known)}")
    device = args.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    logging.basicConfig(stream=sys.stdout, format="    log: %(message)s", level=logging.WARNING)
    logging.getLogger("hf_triton").setLevel(logging.INFO)
    choose_attention_kernels(device)  # as the product loads models
    if device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    return not {"check": check, "time": measure}[args.command](torch.device(device), args.only)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, not a valid regex: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
