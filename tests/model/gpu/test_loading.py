"""What loading a model for a GPU sets for its whole process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PretrainedConfig

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.weights.loading import load_model
from tests.support.served_models import served_model


class Loaded:
    """An auto class whose model is one layer."""

    @staticmethod
    def from_pretrained(files: Path, **_: Any) -> tuple[torch.nn.Module, dict[str, set[str]]]:
        report = ("missing_keys", "mismatched_keys", "unexpected_keys")
        return torch.nn.Linear(2, 2), {key: set() for key in report}


@pytest.fixture
def cudnn_attention() -> Iterator[None]:
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(True)


@pytest.mark.usefixtures("cudnn_attention")
@pytest.mark.parametrize("device, is_on", [("cuda:0", False), ("cpu", True)])
def test_cudnn_attention_is_off_once_a_model_is_on_a_gpu(
    tmp_path: Path, device: str, is_on: bool
) -> None:
    placement = Placement(device, {"": device})
    load_model(served_model(tmp_path), tmp_path, Loaded, PretrainedConfig(), placement)
    assert torch.backends.cuda.cudnn_sdp_enabled() == is_on
