"""The engine without a server: a process that loads once and runs a level when told to.

Loads the generated model as ``model.py`` does; a request is tokenised, generated and detokenised,
but never leaves the process. Told levels as ``levels.py`` says.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch

import hf_triton.runtime  # noqa: F401, before torch: it says how torch's threads wait
from hf_triton.runtime.devices import device
from hf_triton.runtime.weights.served_model import read_served_model
from hf_triton.text_generation.loading import LoadedModel, load_engine
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence, Update
from perf.load.levels import serve_levels
from perf.load.loop import Answer, AnswerError, Ask
from perf.load.requests import Request, num_words
from perf.load.targets import expect


def load(folder: Path) -> LoadedModel:
    """The generated model in ``folder``, its engine started."""
    torch.set_num_threads(1)  # parallel work belongs to the engine's thread alone
    kind = "GPU" if torch.cuda.is_available() else "CPU"
    served = read_served_model(folder, "1")
    placement = device.placement(kind, "0", served.device_map)
    return load_engine(served, placement, device.cpu_threads({}))


class Caller:
    """The recipient of one sequence; its text and number of tokens come as ``answer``."""

    streams = False
    request_id = ""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()

    def take(self, update: Update) -> None:
        """Takes the whole output, or what went wrong."""
        if update.error is not None:
            self.fail(update.error)
        elif update.finish_reason is not None:
            self._hand_over(self.answer.set_result, (update.read_text(), len(update.tokens)))

    def flush(self) -> None:
        """Everything is taken at once."""

    def fail(self, error: Exception) -> None:
        self._hand_over(self.answer.set_exception, AnswerError(str(error)))

    def _hand_over(self, settle: Callable[[Any], None], answer: object) -> None:
        """Bring an answer from the engine's threads to the callers'."""
        self.answer.get_loop().call_soon_threadsafe(settle, answer)


async def generate(loaded: LoadedModel, request: Request) -> tuple[str, int]:
    """Text and number of tokens of one request's output. Raises ``AnswerError``."""
    prompt_token_ids = loaded.reader.tokenize(request.prompt)
    caller = Caller()
    sequence = Sequence(
        prompt_token_ids,
        SamplingParams(max_tokens=request.max_tokens),
        caller,
        Detokenizer(loaded.tokenizer, prompt_token_ids),
    )
    loaded.engine.submit([sequence])
    return await caller.answer


@asynccontextmanager
async def connect(loaded: LoadedModel) -> AsyncIterator[Ask]:
    """A caller of the engine."""

    async def ask(request: Request) -> Answer:
        text, num_tokens = await generate(loaded, request)
        expect(num_words(text), request.max_tokens)
        return Answer(expect(num_tokens, request.max_tokens))

    yield ask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the generated model")
    loaded = load(parser.parse_args().folder)
    serve_levels(lambda: connect(loaded))
    loaded.engine.stop()


if __name__ == "__main__":
    main()
