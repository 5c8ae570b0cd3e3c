"""The ``options:`` of a zero-shot-classification model."""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter

from hf_triton.encoder.options import EncoderOptions
from hf_triton.runtime.option import option


@dataclass(frozen=True)
class Options(EncoderOptions):
    OUTPUT, TASK = "sequences", "zero_shot:ZeroShotClassification"

    hypothesis_template: str = option(
        "This example is {}.", "the hypothesis of each label; {} stands for the label"
    )
    multi_label: bool = option(
        False,
        "true: each label has a score of its own between 0 and 1; false: the scores "
        "of all labels add up to 1",
    )

    def problems(self) -> list[tuple[str, str]]:
        found = super().problems()
        problem = template_problem(self.hypothesis_template)
        if problem is not None:
            found.append(
                ("hypothesis_template", f"got '{self.hypothesis_template}', a text {problem}")
            )
        return found


def template_problem(template: str) -> str | None:
    """The fault of a hypothesis template, as the end of a sentence; None for a valid one. Templates
    are a subset of Python's ``str.format``: ``{}`` for the label, ``{{`` and ``}}`` for braces.
    """
    try:
        fields = [part[1:] for part in Formatter().parse(template) if part[1] is not None]
    except ValueError:
        return "with a single brace; write {{ or }} for one in the text"
    if any(any(field) for field in fields):
        return "with more between braces than {}, which is where the label goes"
    return None if fields else "without {}, which is where the label goes"


def hypothesis(template: str, label: str) -> str:
    """A template without a problem, with the label in it."""
    return template.format(*[label] * len(template))
