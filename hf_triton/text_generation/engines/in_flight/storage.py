"""What the in-flight engine keeps of sequences: plans the size of its pages and tables, makes the
cache, says what the scheduler and the metrics see.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from hf_triton.runtime.errors import LoadError, reason
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.memory.kv_cache_manager import KVCacheManager, new_space
from hf_triton.text_generation.memory.layer_shapes import LayerShape
from hf_triton.text_generation.memory.paged_cache import (
    LEN_WITHOUT_LIMIT,
    PagedCache,
    plan_pages,
    spread_free_bytes,
)
from hf_triton.text_generation.sequence.sequence import Sequence


class Storage:
    """Planned when made. Raises LoadError where the cache does not fit."""

    def __init__(
        self, setup: EngineSetup, shapes: list[LayerShape], model_limit: int | None
    ) -> None:
        self._shapes, options = shapes, setup.options
        length = options.max_model_len or model_limit or LEN_WITHOUT_LIMIT
        self.size = plan_pages(
            shapes,
            model_limit=model_limit,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            kv_cache_gib=options.kv_cache_gib,
            prefix_cache_gib=options.prefix_cache_gib,
            free_bytes=spread_free_bytes(shapes, length, setup.free_bytes),
        )
        self._space: KVCacheManager | None = None

    @property
    def description(self) -> str:
        """How much it holds, for the load's log line."""
        size = self.size
        return (
            f"{size.num_pages - 1} pages of {size.page_size} tokens, at most {size.max_num_seqs} "
            f"sequences of {size.max_model_len}"
        )

    def new_cache(self) -> PagedCache:
        """Takes the memory. Raises LoadError where it is not there."""
        try:
            return PagedCache(self._shapes, self.size)
        except (RuntimeError, MemoryError) as error:
            raise LoadError(
                f"no memory for a KV cache of {self.size.gib:.2f} GiB: {reason(error)}"
            ) from error

    def new_space(self, *, shares: bool, snapshots: bool = False) -> KVCacheManager:
        """What a scheduler sees of the empty cache, with prefixes shared or not, and with
        ``snapshots`` of states.
        """
        self._space = new_space(self._shapes, self.size, shares=shares, snapshots=snapshots)
        return self._space

    def gauges(self, holding: Items[Sequence]) -> dict[str, int]:
        """How much there is and how much is in use, by those that are ``holding`` some."""
        num_used = self._space.num_used if self._space is not None else 0
        return {
            "kv_slots": self.size.max_num_seqs,
            "kv_slots_used": len(holding),
            "kv_pages": self.size.num_pages - 1,
            "kv_pages_used": num_used,
            "kv_tokens": self.size.num_tokens,
            "kv_tokens_used": num_used * self.size.page_size,
        }
