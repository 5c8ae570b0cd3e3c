"""The models that the scenarios are run on, each family in one of the ways it can be served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

BATCHED = ("bart", "m2m100", "searching")


def models_yaml(folder: Callable[[str], Path]) -> str:
    """A models.yaml of all of them; ``folder`` gives that of a family's model."""
    return f"""\
defaults:
  task: text2text-generation
models:
  - name: t5
    model: {folder("t5")}
    options: {{task_specific_params: summarization, max_model_len: 48}}
  - name: bart
    model: {folder("bart")}
    max_batch_size: 8
  - name: marian
    model: {folder("marian")}
    streaming: false
  - name: m2m100
    model: {folder("m2m100")}
    max_batch_size: 8
  - name: mbart
    model: {folder("mbart")}
    streaming: false
  - name: mbart50
    model: {folder("mbart50")}
    streaming: false
    options: {{target_lang: fr_XX}}
  - name: nllb
    model: {folder("nllb")}
    streaming: false
    options: {{source_lang: deu_Latn, truncation: true}}
  - name: searching
    model: {folder("bart")}
    max_batch_size: 8
    options: {{num_beams: 4}}
"""
