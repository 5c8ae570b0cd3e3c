"""The engine without a server, fed the same load: one level, a JSON line per answer.

Loads the generated model as ``model.py`` does; a request is tokenised, generated and detokenised,
but never leaves the process. Started by ``perf.level`` with ``model_templates`` on the module path.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import torch
from hf_runtime import device
from hf_runtime.served_model import read_served_model
from text_generation.detokenizer import Detokenizer
from text_generation.loading import LoadedModel, load_engine
from text_generation.sampling_params import SamplingParams
from text_generation.sequence import Completion, Sequence

from perf.closed_loop import AnswerError, Ask
from perf.level_process import LevelArguments, run_level
from perf.load import Request, num_words
from perf.measure import Record
from perf.targets import expect


def load(folder: Path) -> LoadedModel:
    """The generated model in ``folder``, its engine started."""
    torch.set_num_threads(1)  # parallel work belongs to the engine's thread alone
    kind = "GPU" if torch.cuda.is_available() else "CPU"
    served = read_served_model(folder, "1")
    placement = device.placement(kind, "0", served.device_map)
    return load_engine(served, placement, device.cpu_threads({}))


async def generate(loaded: LoadedModel, request: Request) -> Completion:
    """One request through the engine. Raises ``AnswerError``."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Completion | Exception] = loop.create_future()
    prompt_token_ids = loaded.reader.tokenize(request.prompt)
    sequence = Sequence(
        prompt_token_ids,
        SamplingParams(max_tokens=request.max_tokens),
        on_finish=lambda answer: hand_over(loop, result, answer),
        detokenizer=Detokenizer(loaded.tokenizer, prompt_token_ids, ()),
    )
    loaded.engine.submit([sequence])
    answer = await result
    if isinstance(answer, Exception):
        raise AnswerError(str(answer))
    return answer


def hand_over(
    loop: asyncio.AbstractEventLoop,
    result: asyncio.Future[Completion | Exception],
    answer: Completion | Exception,
) -> None:
    """Bring an answer from the engine's thread to the callers'."""
    loop.call_soon_threadsafe(result.set_result, answer)


@asynccontextmanager
async def connect(loaded: LoadedModel) -> AsyncIterator[Ask]:
    """A caller of the engine."""

    async def ask(request: Request) -> int:
        completion = await generate(loaded, request)
        expect(num_words(completion.text), request.max_tokens)
        return expect(len(completion.token_ids), request.max_tokens)

    yield ask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the generated model")
    LevelArguments.add_to(parser)
    args = parser.parse_args()
    loaded = load(args.folder)
    arguments = LevelArguments.of(args)
    warm_up = LevelArguments.warm_up(arguments.seed)
    thrown_away: list[Record] = []
    asyncio.run(run_level(lambda: connect(loaded), warm_up, report=thrown_away.append))
    asyncio.run(run_level(lambda: connect(loaded), arguments))
    loaded.engine.stop()


if __name__ == "__main__":
    main()
