"""Logits to tokens, for a batch in which every sequence has its own options.

A sequence with drafted tokens has a row for its next token and one for each that follows a drafted
one. Each is sampled by the random number of its own token; those after the first sampled token that
is not the drafted one are dropped. So a draft changes no token. It is speculative sampling
(https://arxiv.org/abs/2211.17192, section 2.3) with all of the draft's probability on one token:
that is accepted with the model's probability for it, else another is drawn from the rest.

A batch of plain greedy sequences costs one argmax. A sequence's options change its own tokens
only, and a seed gives the same tokens in any batch.

On a GPU a step costs one copy in, one copy out and one wait: ``prepare`` what is known before the
forward pass, even before the tokens of the step before are read; ``launch``, which waits for
nothing; ``read``. What grammars and bad words of several tokens forbid is one more copy in.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..forward.transformers.runner import argmax
from ..sequence.sequence import NO_TOKEN, Sequence, Token
from .columns import NOTHING, Columns, DeviceColumns, to_device
from .logits_processors import Changes, LogitsProcessors
from .random_sampling import Draws, grouped
from .token_logprobs import Asked

_NONE_PENDING: Mapping[Sequence, int] = {}


@dataclass(frozen=True)
class SamplerInputs:
    """What is known of a step's sampling before its logits; ``array`` (size,) int32 is to be on the
    device.
    """

    sequences: list[Sequence]
    array: npt.NDArray[np.int32]
    changes: Changes | None = None
    draws: Rows[Draws] = ()
    num_drawn: int = 0
    asked: Asked | None = None


class Sampled:
    """The tokens of a step. ``token_ids`` (num_sequences,) int64 are on the device. Those whose
    rows have no finite ``best`` score are read as NO_TOKEN, though the device goes on with them.
    """

    def __init__(
        self,
        sequences: list[Sequence],
        token_ids: torch.Tensor,
        best: torch.Tensor,
        asked: Asked | None = None,
        logprobs: torch.Tensor | None = None,
    ) -> None:
        self.sequences, self.token_ids, self._asked = sequences, token_ids, asked
        told = torch.where(best - best == 0, token_ids, NO_TOKEN)
        joined = told if logprobs is None else torch.cat([told.int(), logprobs])
        self._host, self._copied = joined, None
        if joined.is_cuda:
            self._host = torch.empty(len(joined), dtype=joined.dtype, pin_memory=True)
            self._host.copy_(joined, non_blocking=True)
            self._copied = torch.cuda.Event()
            # Of the tensor's device, which need not be the current one: KIND_GPU on GPU 1.
            self._copied.record(torch.cuda.current_stream(joined.device))

    def read(self) -> list[Token]:
        """One token for each of ``sequences``; waits for the device."""
        if self._copied is not None:
            self._copied.synchronize()
        if self._asked is None:
            return [Token(token_id) for token_id in self._host.tolist()]
        numbers = self._host.numpy()
        token_ids = numbers[: len(self.sequences)].tolist()
        logprobs = self._asked.read(token_ids, numbers[len(self.sequences) :])
        return [Token(token_id, logprobs.get(row)) for row, token_id in enumerate(token_ids)]


class Sampler:
    """Samples one token per sequence. ``eos_token_ids`` are forbidden until a sequence has its
    min_tokens; ``argmax`` is the runner's own, from (rows, vocab) to (rows,) int64.
    """

    def __init__(
        self,
        eos_token_ids: Rows[int],
        argmax: Callable[[torch.Tensor], torch.Tensor] = argmax,
    ) -> None:
        self._changes = LogitsProcessors(eos_token_ids)
        self._argmax = argmax
        self._last: torch.Tensor | None = None  # token ids

    def sample(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[Token]:
        """logits (num_sequences, vocab), any float dtype, may be changed in place -> one token
        each.
        """
        return self.launch(logits, self.prepare(sequences, logits.shape[-1])).read()

    def prepare(
        self,
        sequences: Rows[Sequence],
        vocab_size: int,
        pending_rows: Mapping[Sequence, int] = _NONE_PENDING,
    ) -> SamplerInputs:
        """What the next ``launch`` needs; a sequence that stands there several times gets as many
        tokens. ``pending_rows`` are those, in the last ``launch``, of tokens that are not read yet.
        What is prepared is launched before the next is prepared, or not at all.
        """
        if all(sequence.params.is_plain for sequence in sequences):
            return SamplerInputs(list(sequences), NOTHING)
        columns = Columns()
        num_before: Counter[Sequence] = Counter()
        drawn = []
        for row, sequence in enumerate(sequences):
            if not sequence.params.is_greedy:
                uniform = sequence.uniform(num_before[sequence])
                drawn.append((row, sequence.params, uniform))
                num_before[sequence] += 1
        changes = self._changes.prepare(sequences, vocab_size, pending_rows, columns)
        draws = [Draws.of(group, vocab_size, columns) for group in grouped(drawn, vocab_size)]
        asked = Asked.of(sequences, columns)
        return SamplerInputs(list(sequences), columns.array(), changes, draws, len(drawn), asked)

    @torch.inference_mode()  # a runner's logits can't be changed in place outside of it
    def launch(
        self,
        logits: torch.Tensor,
        inputs: SamplerInputs,
        array: torch.Tensor | None = None,
        late: Collection[Sequence] = (),
    ) -> Sampled:
        """logits (num_sequences, vocab), may be changed in place -> one token each, which the
        device has or is to compute. ``array`` is ``inputs.array`` where it is on the device. The
        tokens of ``late`` are to be thrown away: their grammars are not waited for.
        """
        if array is None:
            array = to_device(inputs.array, logits.device)
        values, asked = DeviceColumns(array), inputs.asked
        raw, best = logits, None
        if inputs.changes is not None:
            best = logits.amax(dim=-1)
            # Small penalties would be rounded away in half precision.
            logits = logits.to(torch.float32, copy=asked is not None)
            self._changes.apply(logits, inputs.changes, values, self._last, late)
        token_ids = self._choose(logits, inputs, values)
        if best is None:
            best = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)
        logprobs = asked.compute(raw, token_ids, values) if asked is not None else None
        self._last = token_ids
        return Sampled(inputs.sequences, token_ids, best, asked, logprobs)

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept for a finished sequence."""
        self._changes.forget(sequence)

    def _choose(
        self, logits: torch.Tensor, inputs: SamplerInputs, values: DeviceColumns
    ) -> torch.Tensor:
        """logits (num_sequences, vocab) -> token ids (num_sequences,)."""
        all_are_drawn = inputs.num_drawn == len(inputs.sequences)
        if all_are_drawn and len(inputs.draws) == 1:
            return inputs.draws[0].draw(logits, values)
        if all_are_drawn:
            token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        else:
            token_ids = self._argmax(logits)
        for draws in inputs.draws:
            token_ids[values[draws.rows]] = draws.draw(logits, values)
        return token_ids


def choice_seed(seed: int | None, index: int) -> int | None:
    """The seed of choice ``index`` (from 0) of a request with this seed. The first choice has the
    request's own seed, so that its text does not depend on n.
    """
    if seed is None or index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
