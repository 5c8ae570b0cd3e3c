"""The logits processor and stopping criteria by which ``model.generate`` uses our sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria

from hf_triton.runtime.errors import NO_NUMBERS, EngineError
from hf_triton.text_generation.engine.generation_rules import ForcedTokens
from hf_triton.text_generation.sampling.sampler import Sampler
from hf_triton.text_generation.sequence.sequence import NO_TOKEN, Sequence


class SamplingProcessor(LogitsProcessor):
    """Samples a token for each row, or takes a forced one, and forbids ``generate`` all others."""

    def __init__(
        self,
        batch: list[Sequence],
        sampler: Sampler,
        forced: ForcedTokens,
        eos_token_ids: frozenset[int],
        pad_token_id: int,
        chosen: Callable[[list[Sequence]], None],
    ) -> None:
        self.batch, self.sampler, self.forced, self.chosen = batch, sampler, forced, chosen
        self.eos_token_ids, self.pad_token_id = eos_token_ids, pad_token_id

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """scores (batch, vocab) -> the same shape, 0 at each row's token and -inf elsewhere."""
        rows = [row for row, sequence in enumerate(self.batch) if sequence.finish_reason is None]
        token_ids = [self.pad_token_id] * len(self.batch)
        sequences = [self.batch[row] for row in rows]
        tokens = self.sampler.sample(scores[rows], sequences) if rows else []
        for row, token in zip(rows, tokens, strict=True):
            if token.id == NO_TOKEN:
                self.batch[row].end("error", EngineError(NO_NUMBERS))
                continue
            self.forced.append(self.batch[row], token, self.eos_token_ids)
            token_ids[row] = self.batch[row].last_token_id
        self.chosen(sequences)
        chosen = torch.full_like(scores, float("-inf"))
        chosen[torch.arange(len(self.batch)), token_ids] = 0
        return chosen


class BeamProcessor(LogitsProcessor):
    """Reports each step and sequences with NaN scores; forces the first token of rows with one."""

    def __init__(
        self,
        batch: list[Sequence],
        on_step: Callable[[], None],
        on_nan: Callable[[list[Sequence]], None],
    ) -> None:
        self.batch, self.on_step, self.on_nan = batch, on_step, on_nan

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """scores (batch x beams, vocab) -> the same shape."""
        self.on_step()
        is_nan = scores.amax(dim=-1).isnan()
        if is_nan.any():
            rows = is_nan.view(len(self.batch), -1).any(dim=1).tolist()
            self.on_nan([one for one, has_nan in zip(self.batch, rows, strict=True) if has_nan])
            scores = scores.masked_fill(is_nan.unsqueeze(1), 0)
        if input_ids.shape[1] > 1:
            return scores
        num_beams = scores.shape[0] // len(self.batch)
        for row, sequence in enumerate(self.batch):
            forced = sequence.forced_token_id
            if forced is not None:
                beams = scores[row * num_beams : (row + 1) * num_beams]
                beams.fill_(float("-inf"))
                beams[:, forced] = 0
        return scores


class Finished(StoppingCriteria):
    """Ends each row with its sequence, all where the batch ``gives_way``; a row may have beams."""

    def __init__(
        self, batch: list[Sequence], gives_way: Callable[[], bool] = lambda: False
    ) -> None:
        self.batch, self.gives_way = batch, gives_way

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """input_ids (batch x beams, length) -> (batch x beams,) bool: the rows that are done."""
        gives_way = self.gives_way()
        done = [gives_way or sequence.finish_reason is not None for sequence in self.batch]
        beams = input_ids.shape[0] // len(self.batch)
        return torch.tensor(done, device=input_ids.device).repeat_interleave(beams)


def decoder_starts(batch: list[Sequence]) -> dict[str, list[int]]:
    """Each row's decoder start, as an argument of a generation config."""
    starts = [] if batch[0].continues_prompt else [s.prompt_token_ids[0] for s in batch]
    return {"decoder_start_token_id": starts} if starts else {}
