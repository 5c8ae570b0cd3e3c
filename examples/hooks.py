"""Hooks of a classifier: examples/hooks.yaml uses them.

A test of them needs no server::

from generator.testing_hooks import load_hooks

hooks = load_hooks("examples/hooks.yaml", "sentiment")
assert hooks.preprocess({"text_input": " fine "}).text("text_input") == "fine"
"""

from __future__ import annotations

from hf_triton.hooks import HookRequest, HookResponse, RequestError, observe


def preprocess(request: HookRequest) -> None:
    """Takes surrounding blanks away, and answers 400 where nothing is left."""
    texts = [text.strip() for text in request.texts("text_input")]
    if not texts or not all(texts):
        raise RequestError("text_input: missing or blank, a text is required")
    request["text_input"] = texts
    for text in texts:
        observe("sentiment_input_characters", len(text))


def postprocess(response: HookResponse) -> None:
    """Counts the best label of each text; the answer stays as it is."""
    if "label" not in response or "score" not in response:
        return  # the caller asked for other outputs
    labels, scores = response.texts("label"), response["score"].reshape(-1)
    step = max(1, len(labels) // (response.num_rows or 1))  # top_k labels for each text
    for label, score in zip(labels[::step], scores[::step], strict=True):
        observe("sentiment_labels_total", label=label)
        observe("sentiment_score", score)
