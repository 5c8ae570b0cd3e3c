"""The ``options:`` of a zero-shot-classification model.

Standard library only: the generator loads this file to check models.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_encoder.options import EncoderOptions
from hf_runtime.option import option

# Read by generator/spec/task_folders.py.
PACKAGES = ("hf_encoder",)
DETERMINISTIC = True
QUANTIZES = True
OUTPUT = "sequences"


@dataclass(frozen=True)
class Options(EncoderOptions):
    """How one model for natural language inference is run; a request's own word wins."""

    hypothesis_template: str = option(
        "This example is {}.", "the hypothesis of each label; {} stands for the label"
    )
    multi_label: bool = option(
        False,
        "true: each label has a score of its own between 0 and 1; false: the scores "
        "of all labels add up to 1",
    )

    def problems(self) -> list[tuple[str, str]]:
        """Mistakes that no single range tells, each as (field, message)."""
        found = super().problems()
        if "{}" not in self.hypothesis_template:
            message = f"got '{self.hypothesis_template}', expected {{}} where the label goes"
            found.append(("hypothesis_template", message))
        return found
