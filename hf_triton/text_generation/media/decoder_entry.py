"""Takes a decoder's input for a prompt with images or sounds from the model, and feeds the decoder
with it step by step.

Every architecture merges features into embeddings, and counts positions, in its own way. So the
model's own ``generate`` begins each prompt and is stopped where its decoder would begin.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from hf_triton.runtime.attention import OwnAttention

from ..sequence.source import Source
from .features import FeatureCache, tensors_of

# Arguments that every decoder takes, with any prompt.
_USUAL = (
    *("input_ids", "inputs_embeds", "position_ids", "attention_mask", "past_key_values"),
    *("use_cache", "cache_position", "labels", "logits_to_keep", "return_dict"),
    *("output_attentions", "output_hidden_states"),
)


class UnsupportedInputsError(ValueError):
    """The decoder is given what a step can't hold."""


@dataclass
class Encoded:
    """The decoder's input for a prompt of ``num_tokens``: merged ``embeds`` (tokens, hidden),
    ``extras`` by argument, each (tokens, ...) or a list of such, and ``positions`` (axes, tokens),
    None where they are the tokens' numbers. ``deltas`` (axes,) are added to the number of a token
    after the prompt. Tokens ``start .. end-1`` of a block see each other.
    """

    num_tokens: int
    embeds: torch.Tensor | None
    positions: torch.Tensor | None
    deltas: torch.Tensor | None
    extras: dict[str, Any] = field(default_factory=dict)
    blocks: list[tuple[int, int]] = field(default_factory=list)

    def drop(self) -> None:
        """Frees the embeddings of a prompt that is computed."""
        self.embeds = None
        self.extras = {}

    def changes(self, start: int, end: int) -> bool:
        """Returns True if tokens ``start .. end-1`` are computed from more than ids and numbers."""
        if start < self.num_tokens and self.embeds is not None:
            return True
        return self.positions is not None

    def positions_of(self, start: int, end: int) -> torch.Tensor:
        """(axes, end - start) int64."""
        assert self.positions is not None
        assert self.deltas is not None
        own = self.positions[:, start:end]
        first = max(start, self.num_tokens)
        after = torch.arange(first, max(first, end), device=own.device)
        return torch.cat([own, after + self.deltas.unsqueeze(1)], dim=1)


@dataclass(frozen=True)
class Part:
    """Tokens ``start .. end-1`` of a sequence, which lie together in a step's row."""

    encoded: Encoded | None
    start: int
    end: int

    @property
    def fed(self) -> int:
        """The number of them that have embeddings of their own."""
        if self.encoded is None or self.encoded.embeds is None:
            return 0
        return max(0, min(self.end, self.encoded.num_tokens) - self.start)

    def positions(self, axes: int, device: torch.device) -> torch.Tensor:
        """(axes, tokens), the tokens' numbers where the model gives no others."""
        if self.encoded is not None and self.encoded.positions is not None:
            return self.encoded.positions_of(self.start, self.end).to(device)
        return torch.arange(self.start, self.end, device=device).expand(axes, -1)


def fill(given: dict[str, Any], parts: list[Part]) -> dict[str, Any]:
    """A decoder's arguments for the tokens of ``parts``; ``given`` are those for text."""
    embeds = given["inputs_embeds"]
    shape = embeds.shape[:2]
    changed = dict(given)
    changed["inputs_embeds"] = _placed(embeds, shape, parts, lambda one: one.embeds)
    positions = _positions(parts, embeds.device)
    if positions is not None:
        axes = len(positions)
        changed["position_ids"] = positions.view(*((axes,) if axes > 1 else ()), *shape)
    fed = (part.encoded for part in parts if part.fed and part.encoded)
    for name, like in {name: one for own in fed for name, one in own.extras.items()}.items():
        changed[name] = _extra(name, like, given.get(name), shape, parts)
    return changed


def _positions(parts: list[Part], device: torch.device) -> torch.Tensor | None:
    """(axes, tokens), None where all are the tokens' numbers."""
    known = [part.encoded.positions for part in parts if part.encoded is not None]
    axes = max((len(one) for one in known if one is not None), default=0)
    if not axes:
        return None
    return torch.cat([part.positions(axes, device) for part in parts], dim=1)


def _placed(base: torch.Tensor, shape: Any, parts: list[Part], of: Any) -> torch.Tensor:
    """base (*shape, ...) with the prompts' own in the tokens that have them."""
    flat = base.reshape(-1, *base.shape[2:]).clone()
    first = 0
    for part in parts:
        if part.fed:
            own = of(part.encoded)
            if own is not None:
                own = own[part.start : part.start + part.fed]
                flat[first : first + part.fed] = own.to(flat.dtype)
        first += part.end - part.start
    return flat.view(*shape, *base.shape[2:])


def _extra(name: str, like: Any, given: Any, shape: Any, parts: list[Part]) -> Any:
    """An argument for all tokens, of the kind of one prompt's: zeros where the text has none."""

    def whole(own: torch.Tensor, base: Any, of: Any) -> torch.Tensor:
        if not isinstance(base, torch.Tensor) or base.shape[:2] != shape:
            base = own.new_zeros(*shape, *own.shape[1:])
        return _placed(base, shape, parts, of)

    if isinstance(like, torch.Tensor):
        return whole(like, given, lambda one: one.extras.get(name))
    marked = whole(like.mask, None, lambda one: getattr(one.extras.get(name), "mask", None))
    if not marked.any():
        return None
    rows = [_marked_rows(parts, name, layer) for layer in range(len(like.rows))]
    return rows if like.keys is None else dict(zip(like.keys, rows, strict=True))


@dataclass(frozen=True)
class MarkedRows:
    """``rows`` (marked tokens, ...) of the tokens that ``mask`` marks; with ``keys`` a dict."""

    mask: torch.Tensor
    rows: list[torch.Tensor]
    keys: list[Any] | None = None


def _marked_rows(parts: list[Part], name: str, layer: int) -> torch.Tensor:
    found = []
    for part in parts:
        own = part.encoded.extras.get(name) if part.fed and part.encoded else None
        if own is not None:
            first, last = (int(own.mask[:end].sum()) for end in (part.start, part.start + part.fed))
            found.append(own.rows[layer][first:last])
    return torch.cat(found)


def read_entry(given: dict[str, Any], num_tokens: int) -> Encoded:
    """Reads a decoder's arguments for a prompt; raises UnsupportedInputsError."""
    embeds = given["inputs_embeds"]
    positions, deltas = _read_positions(given.get("position_ids"), num_tokens)
    extras: dict[str, Any] = {}
    later: dict[str, Any] = {}
    for name, value in given.items():
        if name in _USUAL or next(tensors_of(value), None) is None:
            continue
        if isinstance(value, torch.Tensor) and value.shape[:2] == (1, num_tokens):
            extras[name] = value[0]
        elif isinstance(value, torch.Tensor) and value.shape[:1] == (num_tokens,):
            raise UnsupportedInputsError(f"its decoder takes {name} without a batch dimension")
        else:
            later[name] = value
    masks = [
        one.reshape(num_tokens, -1).any(-1) for one in extras.values() if one.dtype == torch.bool
    ]
    for name, value in later.items():
        keys = list(value) if isinstance(value, dict) else None
        rows = list(value.values()) if isinstance(value, dict) else value
        rows = list(rows) if isinstance(rows, list | tuple) else None
        mask = next((m for m in masks if rows and _fits(rows, int(m.sum()))), None)
        if rows is None or mask is None:
            raise UnsupportedInputsError(f"its decoder takes {name}, which a step can't hold")
        extras[name] = MarkedRows(mask, rows, keys)
    blocks = _blocks(given.get("attention_mask"), num_tokens)
    return Encoded(num_tokens, embeds[0], positions, deltas, extras, blocks)


def _fits(rows: list[Any], count: int) -> bool:
    return all(isinstance(row, torch.Tensor) and len(row) == count for row in rows)


def _read_positions(
    given: torch.Tensor | None, num_tokens: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Positions (axes, tokens) and deltas (axes,). Multimodal rotary positions go on after the
    largest of them (https://arxiv.org/abs/2409.12191, section 2.1); of four axes the first is the
    tokens' numbers.
    """
    if given is None:
        return None, None
    positions = given.reshape(-1, num_tokens).to(torch.int64)
    numbers = torch.arange(num_tokens, device=positions.device)
    if len(positions) == 1 and bool((positions == numbers).all()):
        return None, None
    deltas = positions.new_zeros(len(positions))
    own = 1 if len(positions) == 4 else 0
    deltas[own:] = positions[own:].max() + 1 - num_tokens
    return positions, deltas


def _blocks(mask: Any, num_tokens: int) -> list[tuple[int, int]]:
    """The blocks of tokens that see each other, by masks (1, 1, tokens, tokens), bool or additive.
    Raises UnsupportedInputsError where tokens see later ones in another way.
    """
    masks = list(mask.values()) if isinstance(mask, dict) else [mask]
    found: list[tuple[int, int]] = []
    for one in masks:
        if not isinstance(one, torch.Tensor) or one.dim() != 4:
            continue
        if one.shape[-2:] != (num_tokens, num_tokens):
            raise UnsupportedInputsError(f"its mask has shape {tuple(one.shape)}")
        visible = one[0, 0] if one.dtype == torch.bool else one[0, 0] >= 0
        found = max(found, _blocks_of(visible), key=len)
    return found


def _blocks_of(visible: torch.Tensor) -> list[tuple[int, int]]:
    num_tokens = len(visible)
    numbers = torch.arange(num_tokens, device=visible.device)
    later = visible & (numbers > numbers.unsqueeze(1))
    last = torch.where(later, numbers, -1).amax(-1).tolist()
    blocks, token = [], 0
    while token < num_tokens:
        end = last[token] + 1
        if end > token:
            blocks.append((token, end))
            if not bool(visible[token:end, token:end].all()):
                raise UnsupportedInputsError("its tokens attend to some that follow them")
        token = max(token + 1, end)
    return blocks


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
        """The decoder's input for a prompt. Raises UnsupportedInputsError."""
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
