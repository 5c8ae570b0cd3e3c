"""The model's own forward of one encoding: what every runner is held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .encoding import Encoding

if TYPE_CHECKING:
    from .runner import RunnerSetup


@torch.inference_mode()
def forward_alone(setup: RunnerSetup, encoding: Encoding) -> torch.Tensor:
    """One encoding without any neighbour or padding -> (num_outputs, size), or (size,) for
    "sequences".
    """
    ids = torch.tensor([encoding.input_ids], device=setup.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if encoding.token_type_ids is not None:
        inputs["token_type_ids"] = torch.tensor([encoding.token_type_ids], device=setup.device)
    output = output_of(setup, setup.model(**inputs))[0]
    return output if encoding.positions is None else output[list(encoding.positions)]


def output_of(setup: RunnerSetup, result: object) -> torch.Tensor:
    """The tensor that is wanted of what the model returned: (batch, length, size), or (batch,
    size) for "sequences". Question answering's two are one, (batch, length, 2).
    """
    if setup.output == "hidden":
        hidden: torch.Tensor = result.last_hidden_state  # type: ignore[attr-defined]
        return hidden
    if hasattr(result, "start_logits"):
        return torch.stack((result.start_logits, result.end_logits), dim=-1)  # type: ignore[attr-defined]
    logits: torch.Tensor = result.logits  # type: ignore[attr-defined]
    return logits
