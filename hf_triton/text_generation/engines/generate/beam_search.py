"""Generates whole batches by transformers' beam search.

Uses the model's generation config, changed by the rows' options, which must be equal in a batch.
Knows no queue: ``on_step`` is called at every step, and the search ends early where all rows were
ended from outside.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

from hf_triton.text_generation.sequence.sequence import Sequence

from .logits_processor import Finished, decoder_starts


class BeamSearch:
    """Searches for the likeliest outputs of a model's batches."""

    def __init__(self, model: Any, eos_token_ids: frozenset[int], pad_token_id: int) -> None:
        self._model, self._eos_token_ids = model, eos_token_ids
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        config = copy.deepcopy(model.generation_config)
        config.do_sample, config.num_return_sequences = False, 1
        config.temperature, config.top_k, config.top_p = 1.0, 50, 1.0
        config.pad_token_id = pad_token_id
        config.eos_token_id = sorted(eos_token_ids) or None
        self._config = config

    @torch.inference_mode()
    def search(
        self,
        batch: list[Sequence],
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        on_step: Callable[[], None],
        on_doubt: Callable[[list[Sequence]], None],
    ) -> list[list[int]]:
        """input_ids and attention_mask (batch, longest) -> each row's tokens, its end included.
        ``on_doubt`` is told of those whose scores are no numbers, and ends them.
        """
        output = self._model.generate(
            input_ids,
            attention_mask=attention_mask,
            generation_config=self._config_for(batch),
            logits_processor=LogitsProcessorList([_StepCallback(batch, on_step, on_doubt)]),
            stopping_criteria=StoppingCriteriaList([Finished(batch)]),
        )
        return [self._until_end(row[1:]) for row in output.tolist()]

    def _config_for(self, batch: list[Sequence]) -> Any:
        params, config = batch[0].params, copy.deepcopy(self._config)
        changes: dict[str, Any] = {
            "num_beams": params.num_beams,
            "max_new_tokens": params.max_tokens,
            "min_new_tokens": params.min_tokens,
            "repetition_penalty": params.repetition_penalty,
        }
        if params.length_penalty is not None:
            changes["length_penalty"] = params.length_penalty
        words = [list(ids) for ids in params.bad_token_ids if max(ids) < self._vocab_size]
        if words:
            changes["bad_words_ids"] = [*(config.bad_words_ids or ()), *words]
        config.update(**changes, **decoder_starts(batch))
        return config

    def _until_end(self, token_ids: list[int]) -> list[int]:
        """Without the padding that follows an end."""
        ends = (place for place, id_ in enumerate(token_ids) if id_ in self._eos_token_ids)
        end = next(ends, None)
        return token_ids if end is None else token_ids[: end + 1]


class _StepCallback(LogitsProcessor):
    """Calls back at every step, and forces the first token of the rows that have one."""

    def __init__(
        self,
        batch: list[Sequence],
        on_step: Callable[[], None],
        on_doubt: Callable[[list[Sequence]], None],
    ) -> None:
        self.batch, self.on_step, self.on_doubt = batch, on_step, on_doubt

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """scores (batch x beams, vocab), which are NaN where the logits' softmax is -> the same
        shape.
        """
        self.on_step()
        is_nan = scores.amax(dim=-1).isnan()
        if is_nan.any():
            rows = is_nan.view(len(self.batch), -1).any(dim=1).tolist()
            self.on_doubt([one for one, doubted in zip(self.batch, rows, strict=True) if doubted])
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
