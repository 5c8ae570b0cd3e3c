"""Logits to scores, and scores to the best labels, as transformers' pipeline does.

Source: transformers, pipelines/text_classification.py, ``postprocess``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    found: Array = np.exp(-np.logaddexp(0, -logits))
    return found


def softmax(logits: Array) -> Array:
    """Shares of the last axis, without overflow."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return shares


def unchanged(logits: Array) -> Array:
    """The logits themselves: what regression answers."""
    return logits


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": unchanged,
}


def default_function(config: Any) -> str:
    """The function for a model of which nobody says one."""
    problem, num_labels = config.problem_type, config.num_labels
    if problem == "regression":
        return "none"
    if problem == "multi_label_classification" or num_labels == 1:
        return "sigmoid"
    if problem == "single_label_classification" or num_labels > 1:
        return "softmax"
    return "none"


def best(scores: Array, top_k: int) -> Array:
    """The indices of the ``top_k`` highest scores, best first; all where it is negative or more
    than there are. Of equal scores the first comes first.
    """
    order: Array = np.argsort(-scores, kind="stable")
    return order if top_k < 0 else order[:top_k]
