"""Whether a GPU draws tokens by the kernel, which takes no memory and one launch: by trying it."""

from __future__ import annotations

import torch

from hf_triton.runtime import log
from hf_triton.runtime.errors import reason

from ..sequence.sampling_params import SamplingParams
from .columns import Columns, DeviceColumns, to_device
from .random_sampling import Draws

_WAYS = (
    SamplingParams(1, temperature=0.7),
    SamplingParams(1, temperature=0.7, top_k=20),
    SamplingParams(1, temperature=0.7, top_p=0.8),
    SamplingParams(1, temperature=0.7, top_k=20, top_p=0.8, min_p=0.05),
)
_SPREAD = 10.0  # of the logits: few tokens hold the weight, so that no rounding changes the choice


@torch.inference_mode()
def draws_alike(logits: torch.Tensor) -> bool:
    """Whether the kernel draws from logits of this width and dtype, and from float32, what torch's
    operators do. Where it does not, for whatever reason, they go on drawing, and the log says why.
    """
    if logits.device.type != "cuda":
        return False
    try:
        from ..forward.gpu import ops  # noqa: F401

        for dtype in {logits.dtype, torch.float32}:
            kernel, expected = _tokens(logits.shape[-1], dtype, logits.device)
            if kernel != expected:
                log.info(f"tokens are drawn without a kernel: it drew {kernel}, not {expected}")
                return False
    except Exception as error:  # whatever a compiler raises: it is not needed
        log.info(f"tokens are drawn without a kernel: {type(error).__name__}: {reason(error, 120)}")
        return False
    return True


def _tokens(
    vocab_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[list[int], list[int]]:
    """The kernel's and torch's, from the same logits and numbers."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(len(_WAYS), vocab_size, generator=random).mul_(_SPREAD).to(dtype)
    logits = logits.to(device)
    columns = Columns()
    drawn = [(row, params, (row + 0.5) / len(_WAYS)) for row, params in enumerate(_WAYS)]
    draws = Draws.of(drawn, vocab_size, columns)
    values = DeviceColumns(to_device(columns.array(), device))
    token_ids = torch.zeros(len(_WAYS), dtype=torch.int64, device=device)
    draws.draw_by_kernel(logits, values, token_ids)
    expected: list[int] = draws.draw(logits, values).tolist()
    return token_ids.tolist(), expected
