"""A step's work, as scheduler, runners and sampler see it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..memory.pages import StateCopy
from ..sequence.sequence import Sequence


@dataclass(frozen=True)
class PrefillChunk:
    """Tokens ``start .. end-1`` of a prompt, or of what a preempted sequence computes again."""

    sequence: Sequence
    start: int
    end: int

    @property
    def is_first(self) -> bool:
        """True if the sequence begins with it, for the first time."""
        sequence = self.sequence
        return self.start == sequence.num_reused_tokens and not sequence.num_preemptions

    @property
    def is_end(self) -> bool:
        """True if nothing is left to compute before the sequence decodes."""
        return self.end == self.sequence.num_prefill_tokens

    @property
    def is_last(self) -> bool:
        return self.is_end and self.sequence.params.max_tokens > 0

    @property
    def scored(self) -> range:
        """The positions whose logits give a wanted log-probability of a prompt's token."""
        if not self.sequence.lacks_prompt_logprobs:
            return range(0)
        first = max(self.start, len(self.sequence.prompt_logprobs))
        return range(first, min(self.end, self.sequence.num_prompt_tokens - 1))


@dataclass(frozen=True)
class Draft:
    """Tokens that a decoding sequence may go on with, computed behind its own token of the step."""

    sequence: Sequence
    token_ids: list[int]

    @property
    def start(self) -> int:
        return self.sequence.num_computed_tokens

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass
class Step:
    """``copies`` come first, then one token for each of ``decodes``, the chunks of ``prefills`` and
    the tokens of ``drafts``.
    """

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[PrefillChunk] = field(default_factory=list)
    copies: list[StateCopy] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)

    @property
    def sampled(self) -> list[Sequence]:
        """The sequences that get a token from this step, in the order of the step's logits."""
        return self.decodes + [chunk.sequence for chunk in self.prefills if chunk.is_last]

    @property
    def chunks(self) -> list[PrefillChunk | Draft]:
        return [*self.prefills, *self.drafts]

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences of ``decodes``, then those of ``chunks``."""
        return self.decodes + [chunk.sequence for chunk in self.chunks]

    @property
    def rows(self) -> list[Sequence]:
        """The sequence of each row that is sampled from: of ``sampled``, then of drafted tokens."""
        drafted = [draft.sequence for draft in self.drafts for _ in draft.token_ids]
        return self.sampled + drafted if drafted else self.sampled

    @property
    def all_rows(self) -> list[Sequence]:
        """The sequence of each row of logits: ``rows``, then a row for each ``scored`` position."""
        scored = [chunk.sequence for chunk in self.prefills for _ in chunk.scored]
        return self.rows + scored if scored else self.rows

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(chunk.end - chunk.start for chunk in self.chunks)
