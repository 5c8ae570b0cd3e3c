"""Where a model hands merged embeddings to its decoder.

Every architecture merges features into embeddings, and counts positions, in its own way. So the
model's own ``generate`` begins each prompt and is stopped where its decoder would begin; what the
decoder was given is then fed to it step by step.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hf_triton.runtime.attention import OwnAttention

from ..sequence.source import Source
from .encoded import Encoded, Part, UnsupportedInputsError, fill, read_entry
from .features import FeatureCache


class DecoderEntry:
    """Watches a model's decoder; made before a runner changes how it attends."""

    def __init__(self, model: Any, device: torch.device, max_feature_bytes: int = 0) -> None:
        """Raises UnsupportedInputsError where nothing in the model takes embeddings."""
        self.model, self.device = model, device
        self._decoder = model.get_decoder()
        arguments = inspect.signature(self._decoder.forward).parameters
        if self._decoder is model or "inputs_embeds" not in arguments:
            raise UnsupportedInputsError("it has no decoder of its own that takes embeddings")
        self._names = list(arguments)
        self._decoder.register_forward_pre_hook(self._enter, with_kwargs=True)
        self.own_attention = OwnAttention(model)
        self.features = FeatureCache(model, max_feature_bytes)
        self._is_capturing = self._merges = False
        self._parts: list[Part] | None = None

    @torch.inference_mode()
    def encode(self, token_ids: list[int], source: Source) -> Encoded:
        """What the decoder is given for a prompt. Raises UnsupportedInputsError."""
        tokens = torch.tensor([token_ids], device=self.device)
        config = copy.deepcopy(self.model.generation_config)
        for name in ("max_length", "min_length", "min_new_tokens"):
            setattr(config, name, None)
        config.update(max_new_tokens=1, do_sample=False, num_beams=1, num_return_sequences=1)
        if config.pad_token_id is None:
            config.pad_token_id = 0
        self._is_capturing = True
        try:
            with self.own_attention.restored(), self.features.of(source):
                self.model.generate(
                    tokens,
                    attention_mask=torch.ones_like(tokens),
                    generation_config=config,
                    **source.on(self.device, self.model.dtype),
                )
        except _EnteredError as entered:
            encoded = read_entry(entered.given, len(token_ids))
            if self._merges and encoded.positions is not None:
                raise UnsupportedInputsError("its layers are given positions") from None
            return encoded
        finally:
            self._is_capturing = False
        raise UnsupportedInputsError("its decoder was given no embeddings")

    @contextmanager
    def feeding(self, parts: list[Part]) -> Iterator[None]:
        """Has the decoder compute ``parts`` in the place of the forward's tokens."""
        self._parts = parts
        try:
            yield
        finally:
            self._parts = None

    def _enter(self, module: Any, args: Any, kwargs: Any) -> Any:
        if self._merges or (not self._is_capturing and self._parts is None):
            return None
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        if given.get("inputs_embeds") is None:
            if self._is_capturing:
                if not (layers := getattr(module, "layers", None)):
                    text = "its decoder merges images and text, and has no layers"
                    raise UnsupportedInputsError(text)
                self._merges = True
                layers[0].register_forward_pre_hook(self._enter_layer, with_kwargs=True)
                return None
            given["inputs_embeds"] = module.get_input_embeddings()(given["input_ids"])
            given["input_ids"] = None
        if self._is_capturing:
            raise _EnteredError(given)
        assert self._parts is not None
        return (), fill(given, self._parts)

    def _enter_layer(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Enters at the first layer of a decoder that merges images and text by itself."""
        hidden = args[0] if args else kwargs["hidden_states"]
        given = {"inputs_embeds": hidden, "attention_mask": kwargs.get("attention_mask")}
        if self._is_capturing:
            raise _EnteredError({**given, "position_ids": kwargs.get("position_ids")})
        if self._parts is None:
            return None
        hidden = fill(given, self._parts)["inputs_embeds"]
        return ((hidden, *args[1:]), kwargs) if args else ((), {**kwargs, "hidden_states": hidden})


class _EnteredError(Exception):
    """Stops ``generate`` where the decoder was entered."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.given = given
