"""How near two embeddings are, by the functions that sentence-transformers' files name; a query's
is first. Source: sentence-transformers, util/similarity.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hf_triton.runtime.request.responder import Array


def _cosine(first: Array, second: Array) -> float:
    lengths = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0


def _best_products(query: Array, document: Array) -> Array:
    """(vectors, size) of both -> each query's vector's largest product, (query vectors,)."""
    best: Array = (query @ document.T).max(axis=1)
    return best


# Of distances the nearer is the larger.
SIMILARITIES: Mapping[str, Callable[[Array, Array], float]] = {
    "cosine": _cosine,
    "dot": lambda first, second: float(first @ second),
    "euclidean": lambda first, second: -float(np.linalg.norm(first - second)),
    "manhattan": lambda first, second: -float(np.abs(first - second).sum()),
    "maxsim": lambda first, second: float(_best_products(first, second).sum()),
    "meanmaxsim": lambda first, second: float(_best_products(first, second).mean()),
}
