"""What every demo model's training shares: the schedule, the loop, and how weights are saved.

Knows no text and no task.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tqdm import tqdm  # type: ignore[import-untyped]

Batch = Mapping[str, torch.Tensor]
Optimizers = Callable[[torch.nn.Module, float], list[torch.optim.Optimizer]]


def be_deterministic(threads: int) -> None:
    """Make what follows give the same bytes each time; another number of threads, other bytes."""
    # One thread in the tokenizer's trainer too, so that its bytes never depend on timing.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)


def schedule(step: int, steps: int) -> float:
    """Factor of the learning rate: a linear warm-up, then half a cosine down to nothing."""
    warm_up = min(100, steps // 10 + 1)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))


def muon_and_adamw(model: torch.nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices within the layers, AdamW for the embeddings and all that is not one."""
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in named if weight.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(
        matrices, learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.AdamW(others, learning_rate, betas=(0.9, 0.95), weight_decay=0.1)]


def adamw(model: torch.nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """AdamW for all: Muon's bfloat16 takes longer than all else where the CPU has none."""
    weights = model.parameters()
    return [torch.optim.AdamW(weights, learning_rate, betas=(0.9, 0.95), weight_decay=0.1)]


def train(
    model: torch.nn.Module,
    batch: Callable[[], Batch],
    *,
    steps: int,
    learning_rate: float,
    loss: Callable[[Any, Batch], torch.Tensor] = lambda model, batch: model(**batch).loss,
    optimizers_of: Optimizers = muon_and_adamw,
    title: str = "training",
) -> None:
    """Train in place, one ``batch()`` a step; the model is left in evaluation mode."""
    optimizers = optimizers_of(model, learning_rate)
    model.train()
    progress = tqdm(range(steps), title, unit=" steps")
    mean_loss = 0.0
    for step in progress:
        value = loss(model, batch())
        model.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * schedule(step, steps)
            optimizer.step()
        mean_loss += (value.item() - mean_loss) * max(0.02, 1 / (step + 1))
        progress.set_postfix(loss=f"{mean_loss:.3f}", refresh=False)
    model.train(False)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save a transformers model and its tokenizer, which neither pads nor cuts by itself."""
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    save_tokenizer(tokenizer, folder)
    save_float16(model, folder)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Save a tokenizer, or a processor that has one; tokenizer.json is one line."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    Tokenizer.from_file(str(path)).save(str(path), pretty=False)


def save_float16(model: Any, folder: Path) -> None:
    """Save a transformers model, readable by any user.

    Weights are stored as float16, half as long; config.json says float32, which is what they are
    computed in.
    """
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    halves = {
        name: weight.half() if weight.is_floating_point() else weight
        for name, weight in load_file(path).items()
    }
    save_file(halves, path, metadata={"format": "pt"})
    path.chmod(0o644)  # a server may run as another user
