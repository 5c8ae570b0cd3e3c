"""Tokens/s of clients in a closed loop on one device, the same weights and load for all, beside
what reading the weights and the keys and values at a copy's bandwidth allows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hf_triton.runtime.devices.device import choose_attention_kernels
from hf_triton.text_generation.kv.layer_shapes import layer_shapes
from perf.gpu.device import copied_per_s
from perf.gpu.models import LLAMAS, bytes_per_step, make_llama
from perf.gpu.speed import generators
from perf.gpu.speed.closed_loop import Answer, Request, mean_context, requests, tokens_per_s
from perf.gpu.speed.memory import told_memory
from perf.gpu.speed.profile import kernels_of, told_host
from perf.gpu.told import Told, first_line, parser, show_log
from perf.verbs.arguments import counts

OURS = "ours"
GENERATORS = {
    OURS: generators.in_flight,
    "batching": generators.batching,
    "vllm": generators.vllm,
}
WHO = (*GENERATORS, "profile", "memory", "generate")
_SPARE_GIB = {"llama-8b": 24.0, "llama-1b": 12.0, "tiny": 0.1}  # cache, buffers, graphs
_REQUESTS, _FEW_REQUESTS = 3.0, 2.25  # a client, of ours and of the others; a window needs two
_END_S = 5.0  # for threads of transformers' that do not end


@dataclass(frozen=True)
class Limit:
    """What a decode step has to read, and how fast a copy goes."""

    weight_bytes: int
    kv_bytes_per_token: int
    bytes_per_s: float

    def tokens_per_s(self, sequences: int, context: float) -> float:
        """Of sequences that attend to so many tokens on average, prompts not counted."""
        read = self.weight_bytes + sequences * context * self.kv_bytes_per_token
        return sequences * self.bytes_per_s / read


class Race:
    """One model on its device, and who generates with it."""

    def __init__(self, told: Told, shape: str) -> None:
        self._told, self._device = told, told.device
        rate = copied_per_s(told.device)
        self.model = make_llama(shape, told.device, _SPARE_GIB[shape])
        per_token = sum(each.bytes_per_token for each in layer_shapes(self.model, told.device))
        self._limit = Limit(bytes_per_step(self.model), per_token, rate)
        row = {"read_per_step_gb": self._limit.weight_bytes / 1e9, "copied_gb_per_s": rate / 1e9}
        told.row(shape, {**row, "kv_kib_per_token": per_token / 1024})

    def asked(self, clients: int, each: float, variant: int = 0) -> list[Request]:
        """The requests of a level, no prompt like another level's."""
        least = 2 if self._told.is_cpu else 1
        number = max(int(each * max(clients, least)), 2 * clients)
        endless = requests(hash((clients, variant)), tiny=self._told.is_cpu)
        return list(islice(endless, number))

    async def loops(self, who: str, clients: Sequence[int]) -> None:
        """A row for each number of clients, other prompts before them: known ones are shared."""
        begun_s, is_ours = time.perf_counter(), who == OURS
        async with GENERATORS[who](self.model) as answer:
            print(f"    {who}: started in {time.perf_counter() - begun_s:.1f} s", flush=True)
            for number in clients:
                await self._warm_up(answer, number, is_ours=is_ours)
                asked = self.asked(number, _REQUESTS if is_ours else _FEW_REQUESTS)
                self._tell(who, number, await tokens_per_s(answer, number, asked))

    async def _warm_up(self, answer: Answer, clients: int, *, is_ours: bool) -> None:
        asked = self.asked(clients, 2, variant=1)
        if is_ours:
            await tokens_per_s(answer, clients, asked)
        else:
            few = asked[: max(1, clients // 4)]
            await asyncio.gather(*(answer(one.prompt, min(8, one.max_tokens)) for one in few))

    def padded(self, clients: Sequence[int]) -> None:
        """Of batches of as many rows as there are clients, at most the tutorial's."""
        for rows in sorted({min(number, generators.PADDED_ROWS) for number in clients}):
            rate = generators.padded_rate(self.model, self.asked(rows, 2)[:rows])
            self._tell("generate on a padded batch", rows, rate)

    def profile(self, clients: Sequence[int]) -> None:
        """Kernels by kind, and the host's work of a step."""
        with generators.engine(self.model, self._device) as engine:
            for number in sorted({clients[0], clients[len(clients) // 2]}):
                for row in kernels_of(engine, number, self._device):
                    self._told.row(f"kernels of a step of {number}", row)
                told_host(engine, number)

    def _tell(self, who: str, clients: int, rate: float) -> None:
        asked = self.asked(clients, _REQUESTS)
        most = self._limit.tokens_per_s(clients, mean_context(asked))
        row = {"useful_tokens_per_s": rate, "limit_tokens_per_s": most}
        self._told.row(f"{who}, {clients} clients", {**row, "of_the_limit_share": rate / most})


def main(argv: list[str]) -> int:
    """Measures ``--who`` in turn; what one raises is told, and the next follows."""
    arguments = parser(__doc__)
    arguments.add_argument("shape", choices=LLAMAS)
    arguments.add_argument("--who", type=_who, default=WHO)
    arguments.add_argument("--clients", type=counts, default=(1, 8, 64, 256))
    args = arguments.parse_args(argv)
    show_log()
    told = Told(args.device)
    choose_attention_kernels(args.device)  # as the product loads models
    race = Race(told, args.shape)
    for who in args.who:
        _measure_or_tell(race, told, who, args.clients)
    return told.exit_code


def _measure_or_tell(race: Race, told: Told, who: str, clients: Sequence[int]) -> None:
    try:
        _measure(race, told, who, clients)
    except ImportError as error:
        print(f"{who}: can't be had here: {first_line(error)}", flush=True)
    except Exception as error:  # noqa: BLE001
        # Whatever a library raises: the others are measured.
        traceback.print_exception(error, limit=-10)
        told.num_bad += 1
        print(f"BAD {who}: {type(error).__name__}: {first_line(error)}", flush=True)


def _measure(race: Race, told: Told, who: str, clients: Sequence[int]) -> None:
    if who in GENERATORS:
        asyncio.run(race.loops(who, clients))
    elif who == "generate":
        race.padded(clients)
    elif who == "profile":
        race.profile(clients)
    else:
        told_memory(told, race.model)


def _who(text: str) -> tuple[str, ...]:
    if unknown := [name for name in text.split(",") if name not in WHO]:
        raise argparse.ArgumentTypeError(f"got {unknown[0]!r}, expected some of {', '.join(WHO)}")
    return tuple(text.split(","))


if __name__ == "__main__":
    code: Any = main(sys.argv[1:])
    threading.Timer(_END_S, lambda: os._exit(code)).start()
    sys.exit(code)
