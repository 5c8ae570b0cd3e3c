"""The labels that Triton's classification extension names: a file of one line for each.

Read from the config.json of a model that is a folder on this machine; that of one on the Hub is
known only where it is loaded, and generating anew would change its config.pbtxt.
"""

from __future__ import annotations

import contextlib

from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import VERSION_FOLDER
from generator.yaml_file.regular_file import read_json

LABELS_FILE = f"{VERSION_FOLDER}/labels.txt"


def labels(spec: ModelSpec) -> bytes:
    """The file, in the order of the model's logits; empty where its labels are not known, or one
    has several lines.
    """
    if spec.source.folder is None:
        return b""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        config = read_json(spec.source.folder / "config.json")
        found = {int(index): str(label) for index, label in config["id2label"].items()}
        lines = [found[index] for index in range(len(found))]
        text = "".join(f"{line}\n" for line in lines)
        if config.get("num_labels", len(lines)) == len(lines) == text.count("\n"):
            return text.encode()
    return b""
