"""A tiny encoder as the server has it before a runner is chosen, without a generated repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from hf_triton.encoder.encoder_loading import longest_input, takes_token_types
from hf_triton.encoder.runners.encoder_runner import RunnerSetup
from hf_triton.encoder.task import OutputKind
from hf_triton.runtime.weights.served_model import ServedModel
from tests.support import served_models as support


def served_model(files: Path, repository: Path, **changes: Any) -> ServedModel:
    """The model in ``files``, served from ``repository/tiny``, where its caches go."""
    values = {"task": "feature-extraction", "model": str(files), "local": True, **changes}
    return support.served_model(repository / "tiny", **values)


def setup_of(
    files: Path, output: OutputKind = "hidden", auto_class: str = "AutoModel", **options: Any
) -> RunnerSetup:
    """``options`` are those of ``from_pretrained``."""
    model = getattr(transformers, auto_class).from_pretrained(files, **options).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(files)
    types = takes_token_types(model, tokenizer)
    longest = longest_input(model, tokenizer, None)
    return RunnerSetup(model, torch.device("cpu"), output, longest, types)
