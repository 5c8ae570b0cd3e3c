"""``python -m perf.speculation``: useful tokens/s with drafts over those without, by clients.

The engine in this process, no server; its threads' time, which other processes change least, and
the clock's. Needs ``model_templates`` on the module path.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hf_runtime  # noqa: F401, before torch: it says how torch's threads wait
import torch
from hf_runtime.devices.device import free_bytes
from hf_runtime.devices.prepacked_linear import prepack
from text_generation.engine.engine import EngineSetup
from text_generation.in_flight.engine import InFlightEngine
from text_generation.options import Options
from text_generation.sequence.detokenizer import Detokenizer
from text_generation.sequence.sampling_params import SamplingParams
from text_generation.sequence.sequence import Sequence, Update
from transformers import AutoTokenizer, LlamaForCausalLM

from perf.model import llama_config
from perf.speculation.copying import copying_model

_ROOT = Path(__file__).resolve().parents[2]
_REQUESTS = {1: 4, 8: 16, 32: 64}  # by clients
_Pair = tuple[float, float]  # tokens for a second of the clock, and of the process


class Round:
    """``num_clients`` send one prompt after the other."""

    request_id, streams = "", False

    def __init__(self, engine: InFlightEngine, tokenizer: Any, params: SamplingParams) -> None:
        self._engine, self._tokenizer, self._params = engine, tokenizer, params
        self._prompts: Iterator[list[int]] = iter(())
        self._num_left = self._num_tokens = 0
        self._ended = threading.Event()

    def run(self, prompts: list[list[int]], num_clients: int) -> _Pair:
        self._prompts, self._num_left, self._num_tokens = iter(prompts), len(prompts), 0
        self._ended.clear()
        began_s, process_s = time.perf_counter(), time.process_time()
        for prompt in [next(self._prompts) for _ in range(num_clients)]:
            self._submit(prompt)
        self._ended.wait()
        seconds = time.perf_counter() - began_s, time.process_time() - process_s
        return self._num_tokens / seconds[0], self._num_tokens / seconds[1]

    def take(self, update: Update) -> None:
        """Called from the delivery's thread alone."""
        if update.finish_reason is None:
            return
        update.read_text()
        self._num_tokens += len(update.tokens)
        self._num_left -= 1
        prompt = next(self._prompts, None)
        if prompt is not None:
            self._submit(prompt)
        elif not self._num_left:
            self._ended.set()

    def flush(self) -> None:
        """Everything is taken at once."""

    def fail(self, error: Exception) -> None:
        raise error

    def _submit(self, prompt: list[int]) -> None:
        detokenizer = Detokenizer(self._tokenizer, prompt)
        self._engine.submit([Sequence(prompt, self._params, self, detokenizer)])


def prompts_of(tokenizer: Any, num: int) -> list[list[int]]:
    """Pieces of code and of English, 100 tokens at most, and a word that asks for them again."""
    rnd = random.Random(1)
    code = [path.read_text(encoding="utf-8") for path in sorted((_ROOT / "perf").rglob("*.py"))]
    english = (_ROOT / "demo/corpus/scenes.txt").read_text(encoding="utf-8").splitlines()
    again = tokenizer("\nAgain:\n").input_ids
    texts = [
        "\n".join(rnd.sample(english, 4)) if number % 2 else _lines(rnd.choice(code), rnd)
        for number in range(num)
    ]
    return [tokenizer(text).input_ids[:100] + again for text in texts]


def _lines(text: str, rnd: random.Random) -> str:
    lines = text.splitlines()
    first = rnd.randrange(max(1, len(lines) - 12))
    return "\n".join(lines[first : first + 12])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=sorted(_REQUESTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--edited", type=float, default=0.1, help="share of tokens, of the copies")
    parser.add_argument("--random", action="store_true", help="sample from random weights instead")
    parser.add_argument("--draft-model", action="store_true", help="two layers of the same copier")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama_config(1024)) if asked.random else copying_model(asked.edited)
    draft = copying_model(asked.edited, llama_config(1024, num_layers=2))
    options = Options(
        max_num_seqs=32, max_model_len=512, prefix_cache=False, speculative_method="ngram"
    )
    engine = InFlightEngine(
        EngineSetup(
            model=model.eval(),
            options=options,
            device=torch.device("cpu"),
            eos_token_ids=frozenset(),
            num_threads=asked.threads,
            free_bytes=free_bytes,
            prepare=prepack,
            draft_model=draft if asked.draft_model else None,
        )
    )
    engine.start()
    print(engine.description)
    tokenizer = AutoTokenizer.from_pretrained(_ROOT / "demo/model")
    params = SamplingParams(96, temperature=float(asked.random), seed=0)
    one, drafter = Round(engine, tokenizer, params), engine._drafter  # noqa: SLF001
    for num_clients in asked.clients:
        prompts = prompts_of(tokenizer, _REQUESTS.get(num_clients, 2 * num_clients))
        ratios: list[_Pair] = []
        for number in range(asked.rounds + 1):
            found = {}
            for drafts in (True, False) if number % 2 else (False, True):
                engine._drafter = drafter if drafts else None  # noqa: SLF001
                found[drafts] = one.run(prompts, num_clients)
            pairs = zip(found[True], found[False], strict=True)
            clock, process = (with_drafts / without for with_drafts, without in pairs)
            ratios += [(clock, process)] * (number > 0)
        medians = [statistics.median(column) for column in zip(*ratios, strict=True)]
        print(f"{num_clients} clients: {medians[0]:.2f} by the clock, {medians[1]:.2f} by CPU time")
    engine.stop()


if __name__ == "__main__":
    main()
