"""Computes images and sounds in the step that begins their sequences; one that fails fails its own
request alone.
"""

from __future__ import annotations

from dataclasses import replace

from hf_triton.runtime import log
from hf_triton.runtime.errors import EngineError, place, reason
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.media.entry import DecoderEntry
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.sequence.source import Source


def encode(step: Step, entry: DecoderEntry) -> tuple[Step, dict[Sequence, EngineError]]:
    """The step with its sources encoded and without the sequences whose sources fail, which are
    given with their errors. One that would share what a failed one was to compute fails too.
    """
    sequences = [chunk.sequence for chunk in step.prefills]
    begun = [(one, one.source) for one in sequences if one.source and one.encoded is None]
    failed = _encode_each(begun, entry)
    if not failed:
        return step, failed
    kept = [chunk for chunk in step.prefills if chunk.sequence not in failed]
    return replace(step, prefills=kept), failed


def _encode_each(
    begun: list[tuple[Sequence, Source]], entry: DecoderEntry
) -> dict[Sequence, EngineError]:
    failed: dict[Sequence, EngineError] = {}
    bad_digests: set[bytes] = set()
    for sequence, source in begun:
        try:
            if not bad_digests.isdisjoint(source.digests):
                raise EngineError("another request's image or sound, the same one, failed")
            sequence.encoded = entry.encode(sequence.prompt_token_ids, source)
        except Exception as error:
            log.error(f"an encoder failed: {place(error)}")
            bad_digests.update(source.digests)
            text = f"encoding failed: {type(error).__name__}: {reason(error)}"
            failed[sequence] = EngineError(text)
    return failed


def forget_embeddings(step: Step) -> None:
    """Drops the embeddings of prompts that the step has computed."""
    for chunk in step.prefills:
        encoded = chunk.sequence.encoded
        if encoded is not None and chunk.end >= encoded.num_tokens:
            encoded.drop()
