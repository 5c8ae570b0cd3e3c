"""What the in-flight engine keeps keys and values in: slots, each with room for the longest
sequence, or pages, with slots of states alone beside them where a model has some. Plans the size,
makes the cache, says what the scheduler and the metrics see.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any, Protocol

from hf_triton.runtime.errors import LoadError, reason
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.memory.kv_cache import (
    LEN_WITHOUT_LIMIT,
    CacheSize,
    KVCache,
    plan_size,
    prefix_slots,
    spread_free_bytes,
)
from hf_triton.text_generation.memory.kv_cache_manager import KVCacheManager
from hf_triton.text_generation.memory.layer_shapes import LayerShape, keep_states
from hf_triton.text_generation.memory.paged_cache import PagedCache, PagedSize, plan_pages
from hf_triton.text_generation.memory.pages import Pages
from hf_triton.text_generation.memory.slot_contents import SlotContents
from hf_triton.text_generation.memory.state_pages import StatePages
from hf_triton.text_generation.sequence.sequence import Sequence

_FEWEST_KEPT = 4  # prefixes


class Storage(Protocol):
    """Planned when made; ``cache`` is there after ``allocate``."""

    @property
    def size(self) -> CacheSize | PagedSize: ...

    @property
    def description(self) -> str:
        """How much it holds, for the load's log line."""

    def new_cache(self) -> KVCache | PagedCache:
        """Takes the memory."""

    def new_space(self, *, shares: bool, snapshots: bool = False) -> KVCacheManager:
        """What a scheduler sees of the empty cache, with prefixes shared or not, and with
        ``snapshots`` of states.
        """

    def gauges(self, holding: Items[Sequence]) -> dict[str, int]:
        """How much there is and how much is in use, by those that are ``holding`` some."""


def plan_storage(
    setup: EngineSetup, shapes: list[LayerShape], model_limit: int | None, *, in_pages: bool
) -> Storage:
    """
    Raises:
        LoadError: the cache does not fit.
    """
    kind = PageStorage if in_pages else SlotStorage
    return kind(setup, shapes, model_limit)


def allocate(storage: Storage) -> KVCache | PagedCache:
    """
    Raises:
        LoadError: the memory is not there.
    """
    try:
        return storage.new_cache()
    except (RuntimeError, MemoryError) as error:
        raise LoadError(
            f"no memory for a KV cache of {storage.size.gib:.2f} GiB: {reason(error)}"
        ) from error


def _asked(setup: EngineSetup, shapes: list[LayerShape], model_limit: int | None) -> dict[str, Any]:
    options = setup.options
    length = options.max_model_len or model_limit or LEN_WITHOUT_LIMIT
    return {
        "model_limit": model_limit,
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "kv_cache_gib": options.kv_cache_gib,
        "free_bytes": spread_free_bytes(shapes, length, setup.free_bytes),
    }


class SlotStorage:
    """A slot for each sequence, for runners that read contiguous views."""

    def __init__(
        self, setup: EngineSetup, shapes: list[LayerShape], model_limit: int | None
    ) -> None:
        asked = _asked(setup, shapes, model_limit)
        self._shapes, self._device = shapes, setup.device
        self.size = plan_size(shapes, **asked)
        self._space: SlotContents | None = None
        gib = setup.options.prefix_cache_gib
        if gib is not None:
            self.size = prefix_slots(self.size, gib, asked["free_bytes"])

    @property
    def description(self) -> str:
        own = self.size.num_prefix_slots
        return (
            f"{self.size.num_slots} sequences x {self.size.max_model_len} tokens"
            f"{f' and {own} more prefixes' if own else ''}"
        )

    def new_cache(self) -> KVCache:
        return KVCache(self._shapes, self.size)

    def new_space(self, *, shares: bool, snapshots: bool = False) -> SlotContents:
        """A CPU's memory is taken when it is first written, so that kept prefixes would soon fill
        the whole cache: there they may use a quarter of the running sequences' slots, beside the
        prefix slots.
        """
        num_slots, num_own = self.size.num_slots, self.size.num_prefix_slots
        is_cpu = self._device.type == "cpu"
        max_kept = num_own + (max(_FEWEST_KEPT, num_slots // 4) if is_cpu else num_slots)
        states = keep_states(self._shapes)
        max_kept = max_kept if shares else 0
        num_written = 0 if self._space is None else self._space.most_written
        self._space = SlotContents(
            *(num_slots, num_own, max_kept),
            states=states,
            snapshots=snapshots,
            num_written=num_written,
        )
        return self._space

    def gauges(self, holding: Items[Sequence]) -> dict[str, int]:
        return {
            "kv_slots": self.size.num_slots,
            "kv_slots_used": len(holding),
            "kv_tokens": self.size.num_slots * self.size.max_model_len,
            "kv_tokens_used": sum(sequence.num_computed_tokens for sequence in holding),
        }


class PageStorage:
    """Pages that all sequences take from as they grow, and a row each for states."""

    def __init__(
        self, setup: EngineSetup, shapes: list[LayerShape], model_limit: int | None
    ) -> None:
        self._shapes = shapes
        gib = setup.options.prefix_cache_gib
        asked = _asked(setup, shapes, model_limit)
        self.size = plan_pages(shapes, **asked, prefix_cache_gib=gib)
        self._pages: Pages | StatePages = Pages(self.size.num_pages, self.size.page_size)

    @property
    def description(self) -> str:
        size = self.size
        return (
            f"{size.num_pages - 1} pages of {size.page_size} tokens, at most {size.max_num_seqs} "
            f"sequences of {size.max_model_len}"
        )

    def new_cache(self) -> PagedCache:
        return PagedCache(self._shapes, self.size)

    def new_space(self, *, shares: bool, snapshots: bool = False) -> Pages | StatePages:
        size = self.size
        if keep_states(self._shapes):
            num_slots, num_own = size.max_num_seqs, size.num_prefix_slots
            is_bounded = size.most_kept is not None
            max_kept = num_own + (max(_FEWEST_KEPT, num_slots // 4) if is_bounded else num_slots)
            max_kept = max_kept if shares else 0
            slots = SlotContents(num_slots, num_own, max_kept, states=True, snapshots=snapshots)
            self._pages = StatePages(size.num_pages, size.page_size, slots)
        else:
            pages = size.num_pages, size.page_size
            self._pages = Pages(*pages, shares=shares, most_kept=size.most_kept)
        return self._pages

    def gauges(self, holding: Items[Sequence]) -> dict[str, int]:
        num_used = self._pages.num_used
        return {
            "kv_slots": self.size.max_num_seqs,
            "kv_slots_used": len(holding),
            "kv_pages": self.size.num_pages - 1,
            "kv_pages_used": num_used,
            "kv_tokens": self.size.num_tokens,
            "kv_tokens_used": num_used * self.size.page_size,
        }
