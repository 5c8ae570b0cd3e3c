"""The encoder engine without a server: a process that loads once and runs a level when told to.

Loads the generated model as ``model.py`` does; a request is read, tokenised, computed and turned
into outputs, but never leaves the process. Reads the words of a level as one line of JSON, prints a
JSON line per answer and an empty line after the last. Started with ``model_templates`` on the
module path.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from feature_extraction.embedding import FeatureExtraction
from feature_extraction.options import Options
from hf_encoder.loading import LoadedEncoder, load_encoder
from hf_encoder.reception import Reception
from hf_runtime import device
from hf_runtime.plain_request import PlainRequest
from hf_runtime.served_model import ServedModel, read_served_model

from perf.encoders.check import Check, read_references
from perf.encoders.targets import FLOAT32_COSINE
from perf.load.closed_loop import Answer, AnswerError, Ask
from perf.load.level_process import LevelArguments, run_level
from perf.load.requests import Request

LISTED = ("embedding",)
SWITCH_INTERVAL_S = 0.0005  # as hf_encoder.triton_model, which imports only inside Triton


def load(served: ServedModel) -> tuple[LoadedEncoder, Reception]:
    """The generated model, started as Triton's side starts it."""
    torch.set_num_threads(1)  # parallel work belongs to the engine's thread alone
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    placement = device.placement("CPU", "0", served.device_map)
    options = Options(**served.options)
    loaded = load_encoder(served, options, FeatureExtraction, placement, device.cpu_threads({}))
    reception = Reception(
        loaded.task,
        loaded.engine,
        max_queue_size=options.max_queue_size,
        num_tokenizer_threads=options.num_tokenizer_threads,
        batched=served.max_batch_size > 0,
    )
    return loaded, reception


class Caller:
    """Who is answered; the embedding comes as ``answer``."""

    request_id = ""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[list[float]] = loop.create_future()

    def send(self, outputs: Mapping[str, npt.NDArray[Any]], *, final: bool) -> None:
        """Takes the only response, as a list: a server's answer would be one too."""
        assert final
        self._hand_over(self.answer.set_result, outputs["embedding"].reshape(-1).tolist())

    def fail(self, error: Exception) -> None:
        """The error is the answer."""
        self._hand_over(self.answer.set_exception, AnswerError(str(error)))

    def is_cancelled(self) -> bool:
        """A caller of the closed loop waits."""
        return False

    def _hand_over(self, settle: Callable[[Any], None], answer: object) -> None:
        """Bring an answer from the engine's threads to the callers'."""
        self.answer.get_loop().call_soon_threadsafe(settle, answer)


@asynccontextmanager
async def connect(reception: Reception, shape: tuple[int, ...], check: Check) -> AsyncIterator[Ask]:
    """A caller; ``shape`` is that of a request's text tensor."""

    async def ask(request: Request) -> Answer:
        text = np.full(shape, request.prompt.encode(), dtype=np.object_)
        caller = Caller()
        reception.take(PlainRequest({"text_input": text}, {}), LISTED, caller)
        check.embedding(request.index, await caller.answer)
        return Answer(0)

    yield ask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the generated model")
    parser.add_argument("--references", type=Path, required=True)
    args = parser.parse_args()
    level_parser = argparse.ArgumentParser()
    LevelArguments.add_to(level_parser)
    served = read_served_model(args.folder, "1")
    loaded, reception = load(served)
    shape = (1, 1) if served.max_batch_size > 0 else (1,)
    print(flush=True)
    for line in sys.stdin:
        arguments = LevelArguments.of(level_parser.parse_args(json.loads(line)))
        check = Check(read_references(args.references, arguments.load), FLOAT32_COSINE)
        asyncio.run(run_level(lambda: connect(reception, shape, check), arguments))  # noqa: B023
        print(flush=True)
    loaded.engine.stop()
    reception.close()


if __name__ == "__main__":
    main()
