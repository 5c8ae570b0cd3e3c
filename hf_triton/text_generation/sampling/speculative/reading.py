"""Reads a model's draft model, which must have the model's vocabulary."""

from __future__ import annotations

from typing import Any

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.loading import load_config, load_model, load_tokenizer
from hf_triton.runtime.weights.model_files import draft_model, model_files
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.text_generation.options import Options


def read_draft_model(
    served: ServedModel, options: Options, tokenizer: Any, placement: Placement
) -> Any:
    """The draft model that models.yaml gives the model; None where it gives none, or asks for
    another method.

    Raises:
        LoadError: it is not there, or its tokens are not the model's.
    """
    if served.draft_model is None or options.speculative_method not in (None, "draft_model"):
        return None
    from transformers import AutoModelForCausalLM

    draft = draft_model(served, served.draft_model)
    try:
        files = model_files(draft)
        config = load_config(draft, files)
        _check_vocabulary(draft, load_tokenizer(draft, files), served, tokenizer)
        return load_model(draft, files, AutoModelForCausalLM, config, placement)
    except LoadError as error:
        raise LoadError(f"draft_model: {error}") from error


def _check_vocabulary(draft: ServedModel, own: Any, served: ServedModel, tokenizer: Any) -> None:
    """Added tokens, such as those of a chat, may be the model's alone."""
    words, drafted = _words(tokenizer), _words(own)
    other = {word for word in words.keys() | drafted.keys() if words.get(word) != drafted.get(word)}
    if other:
        raise LoadError(
            f"{draft.source} has another vocabulary than {served.source}: {len(other)} tokens "
            "differ; a draft model needs the same one"
        )


def _words(tokenizer: Any) -> dict[str, int]:
    added = tokenizer.get_added_vocab()
    return {word: number for word, number in tokenizer.get_vocab().items() if word not in added}
