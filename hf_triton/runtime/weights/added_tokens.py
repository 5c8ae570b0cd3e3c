"""Tells of a tokenizer whose files ask for special tokens that it does not add.

Where there is a tokenizer.json, transformers 5 takes it as it is, whatever ``add_bos_token`` and
``add_eos_token`` of tokenizer_config.json say. A model that was trained with an end of text, such
as an embedder that pools it, answers something else without one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..log import warn
from .served_model import ServedModel


def tell_dropped_tokens(served: ServedModel, files: Path, tokenizer: Any) -> None:
    """Logs a line for the tokens that the files ask for and no text gets, and how to add them."""
    path = files / "tokenizer_config.json"
    if not path.is_file() or not getattr(tokenizer, "is_fast", False):
        return
    asked = json.loads(path.read_text(encoding="utf-8"))
    ends = {
        "add_bos_token": (0, tokenizer.bos_token_id),
        "add_eos_token": (-1, tokenizer.eos_token_id),
    }
    wanted = {name: end for name, end in ends.items() if asked.get(name) is True}
    made = tokenizer("a").input_ids if wanted else []
    dropped = [n for n, (at, token) in wanted.items() if made and token not in (None, made[at])]
    if dropped:
        arguments = ", ".join(f"{name}=True" for name in dropped)
        warn(
            f"{served.name}: tokenizer_config.json asks for {' and '.join(dropped)}, but "
            "tokenizer.json, which counts, adds no such token. To have it: AutoTokenizer."
            f"from_pretrained(FOLDER, {arguments}).save_pretrained(FOLDER)"
        )
