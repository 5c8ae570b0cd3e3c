"""Prints what sentence-transformers answers for the models that a file of JSON names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sentence_transformers import CrossEncoder, SentenceTransformer

asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
answers = {}
for name, case in asked.items():
    prompt = {"prompt_name": case["prompt_name"]} if case["prompt_name"] else {}
    kind = CrossEncoder if case["is_cross_encoder"] else SentenceTransformer
    model = kind(case["folder"], device="cpu", model_kwargs={"dtype": "float32"})
    ask = model.predict if case["is_cross_encoder"] else model.encode
    rows = ask(case["texts"], show_progress_bar=False, **prompt)
    answers[name] = [row.reshape(-1).tolist() for row in rows]
print(json.dumps(answers))
