"""Runs padded batches of similar lengths, for models whose attention can't be packed. Texts of
similar length share a forward, which keeps padding small. In some architectures padding changes the
output: those get batches of equal length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from hf_triton.runtime.devices.cuda_capture import Capture
from hf_triton.runtime.devices.device import to_device
from hf_triton.runtime.trial import RunnerSpec

from ..texts.encoding import ROWS, Encoding, padded_rows, padding_filler
from .encoder_runner import Runner, RunnerSetup, call_options, check_rotation, output_of
from .graphs import Graphs

_MAX_PADDING = 0.1  # of a batch's tokens
_MIN_ROOM = 8  # tokens per text: so little padding costs less than another forward

Forward = Callable[[dict[str, torch.Tensor]], torch.Tensor]


class PaddedRunner(Runner):
    """``forward_padded`` computes (batch, length) inputs; the default is the model's forward.
    With ``capture`` short batches are replayed as CUDA graphs.
    """

    name = "batches cut by length"

    def __init__(
        self,
        setup: RunnerSetup,
        forward_padded: Forward | None = None,
        *,
        equal_lengths: bool = False,
        capture: Capture | None = None,
    ) -> None:
        """``equal_lengths``: no padding at all, a batch is of one length."""
        super().__init__(setup)
        self._max_padding, self._min_room = (0.0, 0) if equal_lengths else (_MAX_PADDING, _MIN_ROOM)
        if not equal_lengths:
            check_rotation(setup)
        self._forward = forward_padded or self._model_forward
        # ONNX Runtime has a pool of its own.
        self.follows_threads = forward_padded is None
        self._pad_id = padding_filler(setup.model.config)
        self._is_per_token = setup.output != "sequences"
        self._graphs = Graphs(setup, self.rows, self.computed, capture) if capture else None

    @torch.inference_mode()
    def forward(self, batch: Sequence[Encoding]) -> list[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        for indexes in self.cuts([len(encoding) for encoding in batch]):
            part = [batch[index] for index in indexes]
            output = None if self._graphs is None else self._graphs.replayed(part)
            if output is None:
                output = self.computed(to_device(self.rows(part), self.setup.device))
            for index, encoding, one in zip(indexes, part, output, strict=False):
                found[index] = encoding.of_tokens(one) if self._is_per_token else one
        return [found[index] for index in range(len(batch))]

    def cuts(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """The indexes of each batch, longest texts first."""
        cut: list[int] = []
        num_tokens = 0
        for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
            longest = lengths[cut[0]] if cut else lengths[index]
            padding = (len(cut) + 1) * longest - num_tokens - lengths[index]
            allowed = max(self._max_padding * longest, self._min_room) * (len(cut) + 1)
            if cut and padding > allowed:
                yield cut
                cut, num_tokens = [], 0
            cut.append(index)
            num_tokens += lengths[index]
        if cut:
            yield cut

    def computed(self, rows: torch.Tensor) -> torch.Tensor:
        """(inputs, batch, longest) -> (batch, longest, size), or (batch, size)."""
        return self._forward(dict(zip(ROWS, rows, strict=False)))

    def rows(self, part: Sequence[Encoding], num_rows: int = 0, length: int = 0) -> torch.Tensor:
        """The model's inputs, (inputs, batch, longest) int64 on the CPU, padded on the right,
        filled up to ``num_rows`` rows of ``length``.
        """
        rows = padded_rows(part, max(length, *map(len, part)), self._pad_id, num_rows)
        return torch.from_numpy(rows if self.setup.has_token_types else rows[:2])

    def _model_forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        model = self.setup.model
        return output_of(self.setup, model(**inputs, **call_options(model)))


PADDED = RunnerSpec(PaddedRunner.name, PaddedRunner)
EQUAL_LENGTHS = RunnerSpec("batches of equal length", partial(PaddedRunner, equal_lengths=True))


def padded_runners(forward: Forward, name: str) -> tuple[RunnerSpec, ...]:
    """Runners for another engine's forward, in the order of preference."""
    return tuple(
        RunnerSpec(f"{name}, {kind.name}", lambda setup, make=kind.make: make(setup, forward))
        for kind in (PADDED, EQUAL_LENGTHS)
    )
