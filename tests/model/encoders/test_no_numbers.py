"""A text whose numbers are none gets an error of its own, whatever runner and task, and nothing of
it is in another's answer: neither after it nor beside it.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from hf_triton.encoder.engine.encoder_engine import EncoderEngine
from hf_triton.encoder.fused.fused_encoder_runner import FusedRunner
from hf_triton.encoder.runners.encoder_runner import Runner, RunnerSetup, random_encodings
from hf_triton.encoder.runners.packed_runner import PackedRunner
from hf_triton.encoder.runners.padded_runner import PaddedRunner
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.engine.work_engine import Work
from hf_triton.runtime.errors import NO_NUMBERS, EngineError
from tests.support.tiny_encoders import CONTEXT, tiny_encoder


@contextmanager
def started(runner: Runner) -> Iterator[EncoderEngine]:
    engine = EncoderEngine(
        lambda: runner, lambda outputs, _: outputs, max_num_batched_tokens=128, num_threads=1
    )
    engine.thread.start()
    yield engine
    engine.thread.stop()


def computed(engine: EncoderEngine, texts: Sequence[Encoding]) -> list[Any]:
    """The hidden states of each, computed together, or its error."""
    results: list[queue.Queue[Any]] = [queue.Queue() for _ in texts]
    works = [
        Work([text], result.put, lambda: False) for text, result in zip(texts, results, strict=True)
    ]
    engine.thread.submit(works)
    found = [result.get(timeout=60) for result in results]
    return [one if isinstance(one, Exception) else one[0] for one in found]


def poison(model: Any, token: int) -> None:
    """Makes the embedding of a token NaN, and of nothing else."""
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = torch.nan


@pytest.mark.threat("no-numbers")
@pytest.mark.parametrize(
    "make, is_padding",
    [(FusedRunner, False), (PackedRunner, False), (PaddedRunner, False), (PaddedRunner, True)],
)
def test_no_text_is_computed_from_anothers(
    make: type[Runner], is_padding: bool, tmp_path: Path
) -> None:
    model = transformers.AutoModel.from_pretrained(tiny_encoder("bert", "AutoModel", tmp_path))
    setup = RunnerSetup(model.eval(), torch.device("cpu"), "hidden", CONTEXT, True)
    texts = [
        one for one in random_encodings(setup, (5, 17, 9, 17, 3, 30)) if 40 not in one.input_ids
    ]
    pad = int(model.config.pad_token_id)
    with started(make(setup)) as engine:
        expected = [computed(engine, [text])[0] for text in texts]
    poison(model, pad if is_padding else 40)
    bad = (
        []
        if is_padding
        else [Encoding([7, 40, *range(7, end)], [0] * (end - 5)) for end in (9, 22)]
    )
    with started(make(setup)) as engine:
        for _ in range(2):
            found = computed(engine, [*bad, *texts])
            assert [str(error) for error in found[: len(bad)]] == [NO_NUMBERS] * len(bad)
            alone = [computed(engine, [text])[0] for text in (*bad, *texts)]
            for tensors in (found[len(bad) :], alone[len(bad) :]):
                for tensor, same in zip(tensors, expected, strict=True):
                    np.testing.assert_allclose(tensor, same, atol=1e-5)
            assert all(isinstance(error, EngineError) for error in alone[: len(bad)])
