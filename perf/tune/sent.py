"""What callers send: prompts of a chosen length that ask for a chosen number of tokens, or the
sample request of the model's task. From ``--load`` to the bodies of HTTP requests.

Knows tensors and tasks; sends nothing.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator import model_config
from generator.curl_lines import infer_input
from generator.errors import UsageError
from generator.sample_requests import Value, sample_request
from generator.schema import Report
from generator.yaml_nodes import Node
from perf.sweep import ranges
from perf.sweep.ranges import Lengths

NUM_BODIES = 64  # different requests, sent again and again
_WORDS = re.findall(
    "[a-z]+",
    "the a one this every small large old new green quiet dog river house garden morning letter "
    "train city window teacher child story runs opens finds writes carries answers follows keeps "
    "and but while because near under over after before with",
)
_SYNTAX = "expected such as prompt=64,output=128 or prompt=16-256,output=8-64 (tokens)"


@dataclass(frozen=True)
class Sent:
    """Lengths of texts and of the answers that they ask for; None: as the sample request has it."""

    prompt: Lengths | None = None
    output: Lengths | None = None

    @classmethod
    def parse(cls, text: str) -> Sent:
        """Of ``prompt=64,output=8-128``. Raises UsageError."""
        given: dict[str, Lengths] = {}
        for part in text.split(","):
            name, equals, value = part.strip().partition("=")
            if not equals or name not in ("prompt", "output") or name in given:
                raise UsageError(f"--load: got '{text}', {_SYNTAX}, or a sweep's scenario (YAML)")
            given[name] = _lengths(name, value.strip())
        return cls(**given)


def _lengths(name: str, text: str) -> Lengths:
    report = Report()
    value = int(text) if text.isdecimal() else text
    found = ranges.lengths(Node(value, 0, 0, name, text), report)
    if report.problems or not found:
        raise UsageError(f"--load {name}: {report.problems[0].message}")
    return found[0]


@dataclass(frozen=True)
class Folder:
    """A generated model: what it takes, and what its folder says to send."""

    repository: Path
    name: str

    def config(self) -> Any:
        """Its config.pbtxt. Raises OSError."""
        text = (self.repository / self.name / "config.pbtxt").read_text(encoding="utf-8")
        return model_config.parse(text)

    def inputs(self) -> list[str]:
        """The names of the tensors that it takes."""
        return [tensor.name for tensor in self.config().input]

    def samples(self) -> dict[str, Value]:
        """The sample request of its task."""
        return sample_request(self.repository, self.name, self.config())

    def infer_body(self, values: dict[str, Value]) -> str:
        """The JSON of /infer."""
        config = self.config()
        tensors = {tensor.name: tensor for tensor in config.input}
        inputs = [
            infer_input(tensors[name], value, config.max_batch_size)
            for name, value in values.items()
        ]
        return json.dumps({"inputs": inputs})


def requests(
    folder: Folder, sent: Sent, seed: int, tokens_per_word: float
) -> list[dict[str, Value]]:
    """The values of different requests, the same for the same seed."""
    draw = random.Random(seed)
    sample, known = folder.samples(), folder.inputs()
    prompts = sent.prompt.draw(NUM_BODIES, draw) if sent.prompt else [None] * NUM_BODIES
    outputs = sent.output.draw(NUM_BODIES, draw) if sent.output else [None] * NUM_BODIES
    found = []
    for prompt, output in zip(prompts, outputs, strict=True):
        values = dict(sample)
        if prompt is not None:
            values[text_input(sample)] = words(draw, prompt / tokens_per_word)
        if output is not None:
            values |= {"max_tokens": output, "min_tokens": output}
        if "return_num_output_tokens" in known:
            values["return_num_output_tokens"] = True
        found.append(values)
    return found


def text_input(sample: dict[str, Value]) -> str:
    """The input that a text of any length may go into."""
    names = ("context", "text_input", "inputs")
    return next(name for name in names if isinstance(sample.get(name), str))


def takes_text(sample: dict[str, Value]) -> bool:
    """Whether there is such an input; a mask in it must stay."""
    texts = [sample.get(name) for name in ("context", "text_input", "inputs")]
    found = [text for text in texts if isinstance(text, str)]
    return bool(found) and not any("mask" in text.lower() for text in found)


def words(draw: random.Random, number: float) -> str:
    """About so many words, at least one."""
    return " ".join(draw.choice(_WORDS) for _ in range(max(1, round(number))))
