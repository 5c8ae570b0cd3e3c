"""Limits the tokens of prompts beside decodes, by the time that steps took."""

from __future__ import annotations

from dataclasses import dataclass

# Weights of a new measurement by whether it is below the mean. What holds a step up, such as
# another process, makes it longer, never shorter: so the mean is of the shorter ones.
_WEIGHT_BELOW, _WEIGHT_ABOVE = 1 / 4, 1 / 16
_MOST = 2.0  # times the mean: what a measurement counts at most
# The share of a step of decodes that prompts may add: with all of it half of the steps would
# take more than twice as long.
_SHARE = 0.8
_FEWEST_TOKENS = 16  # fewer cost about as much


@dataclass
class LowMean:
    """A mean of measurements in which the low ones count most."""

    value: float
    num: int = 0
    weight_above: float = _WEIGHT_ABOVE

    def add(self, value: float) -> None:
        """Adds a measurement; each of the first ones counts as much as all before."""
        own = _WEIGHT_BELOW if value < self.value else self.weight_above
        self.num += 1
        self.value += max(own, 1 / self.num) * (value - self.value)


class StepTimes:
    """Times of steps. A step with a prompt is to take at most twice as long as its decodes, with
    several prompts far longer: more decodes hardly slow down a step.
    """

    def __init__(self) -> None:
        self._decodes: dict[int, LowMean] = {}  # seconds, by the number of sequences
        self._token: LowMean | None = None  # of a prompt

    def note(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Records how long a step with these numbers of decodes and prompt tokens took."""
        if not num_prompt_tokens:
            mean = self._decodes.setdefault(num_decodes, LowMean(seconds))
            mean.add(min(seconds, _MOST * mean.value))
            return
        token_s = max(0.0, seconds - self._decode_s(num_decodes)) / num_prompt_tokens
        if self._token is None:
            self._token = LowMean(token_s, weight_above=_WEIGHT_BELOW)  # which differs
        self._token.add(min(token_s, _MOST * self._token.value))

    def most_prompt_tokens(self, num_decodes: int, num_prompts: int) -> int | None:
        """The most prompt tokens that a step may compute while ``num_prompts`` wait, or None before
        the times of prompts and decodes were measured.
        """
        decode_s = self._decode_s(num_decodes)
        if self._token is None or not decode_s:
            return None
        seconds = decode_s * _SHARE * num_prompts**2
        return max(_FEWEST_TOKENS, int(seconds / max(self._token.value, 1e-9)))

    def cost_of_token(self, num_decodes: int) -> float | None:
        """The cost of one more token in a step, as a share of a decode; None if unmeasured."""
        decode_s = self._decode_s(num_decodes)
        if self._token is None or not decode_s:
            return None
        return self._token.value * num_decodes / decode_s

    def _decode_s(self, num_decodes: int) -> float:
        """The seconds of the nearest number that was measured; 0 where none was."""
        if not num_decodes or not self._decodes:
            return 0.0
        nearest = min(self._decodes, key=lambda known: abs(known - num_decodes))
        return self._decodes[nearest].value
