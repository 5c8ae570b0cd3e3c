"""``mlserver infer``: a file with a request in each line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tried import EXPECTED, PROMPT, program, tried

folder = Path(os.environ["OUTPUT"])
text = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [PROMPT]}
tokens = {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [12]}
(folder / "in.jsonl").write_text((json.dumps({"inputs": [text, tokens]}) + "\n") * 3)


def infer(*arguments: str) -> None:
    files = ("-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"))
    said = program("mlserver", "infer", "-u", os.environ["TRITON_HTTP"], *files, *arguments)
    answers = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert len(answers) == 3, said
    for answer in answers:
        assert answer["outputs"][0]["data"] == [EXPECTED], answer


with tried("mlserver infer"):
    infer("-m", "demo")
with tried("mlserver infer -b"):
    infer("-m", "demo", "-b")
