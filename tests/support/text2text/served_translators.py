"""The models that the scenarios are run on, each family in one of the ways it can be served."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

BATCHED = ("bart", "m2m100", "searching")
# name -> the family of its model, and what else its entry says
SERVED = {
    "t5": ("t5", "options: {task_specific_params: summarization, max_model_len: 48}"),
    "bart": ("bart", "max_batch_size: 8"),
    "marian": ("marian", "options: {max_num_seqs: 4}"),
    "m2m100": ("m2m100", "max_batch_size: 8"),
    "mbart": ("mbart", "streaming: false"),
    "mbart50": ("mbart50", "options: {target_lang: fr_XX}"),
    "nllb": ("nllb", "options: {source_lang: deu_Latn, truncation: true}"),
    "searching": ("bart", "max_batch_size: 8\n    options: {num_beams: 4}"),
}


def models_yaml(folder: Callable[[str], Path], names: Iterable[str] = SERVED) -> str:
    """A models.yaml of these; ``folder`` gives that of a family's model."""
    entries = [
        f"  - name: {name}\n    model: {folder(SERVED[name][0])}\n    {SERVED[name][1]}\n"
        for name in names
    ]
    return f"defaults: {{task: text2text-generation}}\nmodels:\n{''.join(entries)}"
