"""Proposes what a smaller model would say, the likeliest token each time.

The draft model has a slot of its own cache for each sequence that drafts. Tokens that it has not
seen yet (the prompt at first) are computed before it goes on; of those that were not accepted, keys
and values are written over. Knows no other sequences than those it drafts for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from hf_triton.text_generation.engine.step import PrefillChunk, Step
from hf_triton.text_generation.forward.transformers.runner import Runner
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence

_FIRST_RATE = 0.7
_WEIGHT, _WEIGHT_OF_ALL = 1 / 8, 1 / 64  # of the last token, in rates
_MOST_BEHIND = 2  # tokens that a sequence has more than its draft knows, as it goes on


@dataclass
class _Drafting:
    """``own`` is the sequence as the draft model sees it, ``drafted`` what it said last, after
    ``num_known`` tokens.
    """

    own: Sequence
    rate: float
    drafted: list[int] = field(default_factory=list)
    num_known: int = 0


class ModelProposer:
    """Computes ``model`` with ``runner``, whose cache has slots, at most ``max_num_batched_tokens``
    a step; ``make_sequence`` makes one of a prompt. Proposes ids below ``vocab_size``.
    """

    method = "draft_model"

    def __init__(
        self,
        runner: Runner,
        model: Any,
        make_sequence: Callable[[list[int], SamplingParams], Sequence],
        vocab_size: int,
        max_num_batched_tokens: int,
    ) -> None:
        size = runner.cache.size
        self._runner, self._make_sequence = runner, make_sequence
        self._vocab_size, self._max_num_tokens = vocab_size, max_num_batched_tokens
        self._own_vocab_size = int(model.config.get_text_config().vocab_size)
        self._max_model_len = size.max_model_len
        self._free_slots = list(range(size.num_slots - 1, -1, -1))
        self._drafting: dict[Sequence, _Drafting] = {}
        self._usual_rate = _FIRST_RATE  # a new sequence's
        self.is_steady = True

    def rate(self, sequence: Sequence) -> float:
        """How likely the next proposed token is right; 0 where there is no room for a draft."""
        num_tokens = sequence.num_prompt_tokens + sequence.params.max_tokens
        if num_tokens > self._max_model_len:
            return 0.0
        drafting = self._drafting.get(sequence)
        if drafting is not None:
            return drafting.rate
        return self._usual_rate if self._free_slots and sequence.token_ids else 0.0

    def propose(self, lengths: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        """So many tokens of each; none yet of one whose tokens take more than a step."""
        lengths = {one: length for one, length in lengths.items() if self._catch_up_with(one)}
        known = [self._drafting[sequence] for sequence in lengths]
        behind = [one.num_known - one.own.num_computed_tokens for one in known]
        self.is_steady = max(behind, default=0) <= _MOST_BEHIND
        logits, going = self._begin(known)
        wanted = {id(self._drafting[sequence]): length for sequence, length in lengths.items()}
        while going:
            tokens = self._runner.argmax(logits).tolist()
            for one, token_id in zip(going, tokens, strict=True):
                one.drafted.append(token_id)
            going = [
                one
                for one in going
                if len(one.drafted) < wanted[id(one)] and one.drafted[-1] < self._vocab_size
            ]
            if going:
                logits = self._go_on(going)
        return {
            sequence: [one for one in self._drafting[sequence].drafted if one < self._vocab_size]
            for sequence in lengths
        }

    def follow(self, sequence: Sequence, token_ids: list[int]) -> None:
        """The last tokens of a sequence, and what they say of the last draft."""
        drafting = self._drafting.get(sequence)
        if drafting is None or not drafting.drafted:
            return
        num_right = 0
        for drafted, token_id in zip(drafting.drafted, token_ids, strict=False):
            was_right = drafted == token_id
            num_right += was_right
            drafting.rate += _WEIGHT * (was_right - drafting.rate)
            self._usual_rate += _WEIGHT_OF_ALL * (was_right - self._usual_rate)
            if not was_right:
                break
        own = drafting.own
        own.num_computed_tokens = min(own.num_computed_tokens, drafting.num_known + num_right)
        drafting.drafted = []

    def forget(self, sequence: Sequence) -> None:
        """Gives the slot of a finished sequence back."""
        drafting = self._drafting.pop(sequence, None)
        if drafting is not None:
            self._free_slots.append(drafting.own.slot)

    def _catch_up_with(self, sequence: Sequence) -> bool:
        """Has the draft know of all tokens of a sequence; False where it has no slot for it."""
        drafting = self._drafting.get(sequence)
        if drafting is None and not self._free_slots:
            return False
        if drafting is None:
            own = self._make_sequence([], SamplingParams(1))
            own.slot = self._free_slots.pop()
            drafting = self._drafting[sequence] = _Drafting(own, self._usual_rate)
        own = drafting.own
        num_known = drafting.num_known
        del own.prompt_token_ids[num_known:]
        last = sequence.num_prompt_tokens + len(sequence.token_ids)
        own.prompt_token_ids += sequence.tokens(num_known, last)
        drafting.num_known, drafting.drafted = last, []
        own.num_prefill_tokens = last
        return True

    def _begin(self, known: list[_Drafting]) -> tuple[torch.Tensor, list[_Drafting]]:
        """Computes what the draft has not seen, a step's tokens at most -> the logits (drafts,
        vocab) of those that have seen all, and these.
        """
        room, chunks = self._max_num_tokens, []
        for one in known:
            own = one.own
            end = min(own.num_prefill_tokens, own.num_computed_tokens + room)
            if end > own.num_computed_tokens and self._can_read(one, end):
                chunks.append(PrefillChunk(own, own.num_computed_tokens, end))
                room -= end - own.num_computed_tokens
                own.num_computed_tokens = end
        if not chunks:
            return torch.empty(0), []
        logits = self._runner.forward(Step(prefills=chunks))
        done = {id(chunk.sequence) for chunk in chunks if chunk.is_last}
        return logits, [one for one in known if id(one.own) in done]

    def _can_read(self, one: _Drafting, end: int) -> bool:
        tokens = one.own.prompt_token_ids[one.own.num_computed_tokens : end]
        return max(tokens) < self._own_vocab_size

    def _go_on(self, going: list[_Drafting]) -> torch.Tensor:
        """Computes the last drafted token of each -> logits (drafts, vocab)."""
        chunks = []
        for one in going:
            own = one.own
            own.prompt_token_ids.append(one.drafted[-1])
            own.num_prefill_tokens += 1
            own.num_computed_tokens += 1
            chunks.append(PrefillChunk(own, own.num_computed_tokens - 1, own.num_prefill_tokens))
        logits: torch.Tensor = self._runner.forward(Step(prefills=chunks))
        return logits
