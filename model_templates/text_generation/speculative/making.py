"""Makes what an engine's options ask for."""

from __future__ import annotations

from typing import Any

from hf_runtime import log

from ..options import Options
from .drafter import Drafter
from .ngram_proposer import NgramProposer

_FEWEST_ROWS = 32  # of logits, however few sequences a model serves at once


def make_drafter(
    options: Options, runner: Any, max_num_seqs: int, runs_ahead: bool
) -> Drafter | None:
    """None where nothing is asked for, or the runner can't compute drafts; the log says so."""
    if options.speculative_method == "off":
        return None
    if not getattr(runner, "takes_drafts", False):
        log.info(f"nothing is drafted: the {runner.name} runner can't take tokens back")
        return None
    return Drafter(
        NgramProposer(options.prompt_lookup_min, options.prompt_lookup_max),
        options.num_speculative_tokens,
        max(max_num_seqs, _FEWEST_ROWS),
        runs_ahead=runs_ahead,
    )
