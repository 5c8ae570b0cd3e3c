"""Logits to scores, and scores to the best labels, as transformers' pipeline does; the score of a
reranker, as sentence-transformers' CrossEncoder does.

Sources: transformers, pipelines/text_classification.py, ``postprocess``; sentence-transformers,
cross_encoder/CrossEncoder.py, ``get_default_activation_fn``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_triton.runtime.errors import LoadError

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


# torch's class that a cross-encoder's config.json names -> the function.
_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "none"}


def default_function(config: Any) -> str:
    """The function for a model of which models.yaml says none. Raises LoadError where the model's
    own is not known here.
    """
    problem, num_labels = config.problem_type, config.num_labels
    own = _own_activation(config) if num_labels == 1 else None
    if own is not None:
        return own
    if problem == "regression":
        return "none"
    if problem == "multi_label_classification" or num_labels == 1:
        return "sigmoid"
    if problem == "single_label_classification" or num_labels > 1:
        return "softmax"
    return "none"


def _own_activation(config: Any) -> str | None:
    """What sentence-transformers wrote into a cross-encoder's config.json."""
    written = getattr(config, "sentence_transformers", None) or {}
    older = getattr(config, "sbert_ce_default_activation_function", None)
    name = written.get("activation_fn", older)
    if name is None:
        return None
    function = _ACTIVATIONS.get(str(name).rpartition(".")[2])
    if function is None:
        known = ", ".join(_ACTIVATIONS)
        raise LoadError(f"activation_fn: got {name}, known: {known}; set function_to_apply")
    return function


def best(scores: Array, top_k: int) -> Array:
    """The indices of the ``top_k`` highest scores, best first; all where it is negative or more
    than there are. Of equal scores the first comes first.
    """
    order: Array = np.argsort(-scores, kind="stable")
    return order if top_k < 0 else order[:top_k]
