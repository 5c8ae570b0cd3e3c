"""Rules of a model's generation config for its outputs beside the sampler's options: tokens forced
at the beginning and at the end, n-grams that may not come again, suppressed tokens.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import LogitsProcessorList

from ..sequence.sequence import DecoderStart, Sequence, TokenLogprobs

# Fields that transformers' logits processors follow; false ones have no effect.
_RULES = (
    *("no_repeat_ngram_size", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids"),
    *("sequence_bias", "exponential_decay_length_penalty", "encoder_repetition_penalty"),
    *("encoder_no_repeat_ngram_size", "watermarking_config", "remove_invalid_values"),
)


def has_rules(model: Any) -> bool:
    """True if a decoder's generation config has a field that GenerationRules follows."""
    own = model.generation_config
    ends = getattr(own, "forced_eos_token_id", None) is not None
    return ends or any(getattr(own, name, None) for name in _RULES)


def vocab_size(model: Any) -> int:
    return int(model.config.get_text_config().vocab_size)


def eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a text, as the model's generation config says, else its tokenizer."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    if ids is None:
        ids = tokenizer.eos_token_id
    listed = ids if isinstance(ids, list | tuple) else [] if ids is None else [ids]
    return frozenset(int(token_id) for token_id in listed if 0 <= int(token_id) < vocab_size(model))


def decoder_start(model: Any) -> DecoderStart | None:
    """The start of an encoder-decoder's outputs, or None for a decoder or where it is unknown."""
    if not model.config.is_encoder_decoder:
        return None
    own = model.generation_config
    ids = [getattr(own, name, None) for name in ("decoder_start_token_id", "bos_token_id")]
    token_id = next((token_id for token_id in ids if isinstance(token_id, int)), None)
    return None if token_id is None else DecoderStart(token_id)


def neutral_config(model: Any) -> Any:
    """The model's generation config without the options that a request may set."""
    own = model.generation_config
    # Every call says its lengths; were they here too, transformers would warn at each.
    own.max_length = own.max_new_tokens = own.min_length = own.min_new_tokens = None
    config = copy.deepcopy(own)
    config.do_sample, config.num_beams, config.num_return_sequences = False, 1, 1
    # Neutral values, not None, which generate replaces by the model's own.
    config.temperature, config.top_k, config.top_p = 1.0, 50, 1.0
    config.repetition_penalty, config.length_penalty, config.early_stopping = 1.0, 1.0, False
    if not model.config.is_encoder_decoder:
        config.forced_bos_token_id = None  # transformers forces it if there is no prompt
    # Sequence.append decides when a sequence ends: generate must not end one that ignores eos.
    config.eos_token_id = vocab_size(model)  # an id that never comes
    return config


class GenerationRules:
    """The tokens that outputs have to begin and to end with, a sequence's own, or those of the
    config (BART's ``forced_eos_token_id``, which ``generate`` would force in the longest row only);
    and transformers' logits processors of the config, row by row.
    """

    def __init__(self, model: Any, eos_token_ids: frozenset[int]) -> None:
        self.config = config = neutral_config(model)
        last = getattr(config, "forced_eos_token_id", None)
        self._first: int | None = config.forced_bos_token_id
        self._last: int | None = last[0] if isinstance(last, list) else last
        self._eos_token_ids = eos_token_ids
        config.forced_eos_token_id = None
        ends = sorted(eos_token_ids)
        if not ends:  # no token to make likelier
            ends, config.exponential_decay_length_penalty = [config.eos_token_id], None
        config._eos_token_tensor = torch.tensor(ends, device=model.device)  # noqa: SLF001
        self._model = model

    def next_of(self, sequence: Sequence) -> int | None:
        """The token that has to come next, of probability 1; None where any may."""
        if sequence.num_tokens_left == 1 and self._last is not None:
            return self._last
        if sequence.token_ids:
            return None
        return self._first if sequence.forced_token_id is None else sequence.forced_token_id

    def append(self, sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """Appends the sampled token, or the one that is forced here; nothing follows the last."""
        forced = self.next_of(sequence)
        if forced is None:
            sequence.append(token_id, self._eos_token_ids, logprobs)
            return
        is_last = self._last is not None and sequence.num_tokens_left == 1
        certain = None if sequence.params.num_logprobs is None else TokenLogprobs(0.0, 1)
        ends = frozenset() if is_last else self._eos_token_ids
        sequence.append(forced, ends, certain, is_forced=True)

    @torch.inference_mode()
    def apply(self, logits: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
        """logits (rows, vocab) -> the same shape, float32 where something may change."""
        lists = [self._list(sequence, logits.device) for sequence in sequences]
        if not any(lists):
            return logits
        rows = []
        for sequence, own, row in zip(sequences, lists, logits.float().split(1), strict=True):
            tokens: Any = torch.tensor([sequence.penalised_token_ids], device=logits.device)
            rows.append(own(tokens, row))
        return torch.cat(rows)

    def _list(self, sequence: Sequence, device: torch.device) -> LogitsProcessorList:
        found: LogitsProcessorList | None = sequence.kept.get(GenerationRules)
        if found is None:
            read = None if sequence.source is None else sequence.source.inputs.get("input_ids")
            found = sequence.kept[GenerationRules] = self._model._get_logits_processor(  # noqa: SLF001
                generation_config=self.config,
                input_ids_seq_length=sequence.num_prompt_tokens,
                encoder_input_ids=None if read is None else read.to(device),
                device=device,
                model_kwargs={},
            )
        return found
