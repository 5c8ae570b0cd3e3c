"""More adapters than the device holds: those that requests ask for have a place on it, the others
wait in host memory. A place has room for the largest rank of all, so that shapes stay as they are
while adapters come and go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence

from .linear import Adapter, Adapters, Change


class LimitedAdapters(Adapters):
    """Adapters of which at most ``max_loaded`` have a place. One that needs a place takes that of
    the one whose requests began longest ago, among those that none needs.
    """

    def __init__(
        self, adapters: Sequence[Adapter], sizes: Mapping[str, tuple[int, int]], max_loaded: int
    ) -> None:
        self.max_loaded = max_loaded
        self.num_loads = 0
        self._places: OrderedDict[int, int] = OrderedDict()  # by key, the latest last
        self._free = list(range(max_loaded))
        super().__init__(adapters, sizes)

    def holds(self, key: int) -> bool:
        """Whether an adapter has a place."""
        return key in self._places

    def load(self, key: int, used: Callable[[], Collection[int]]) -> bool:
        """Gives an adapter a place unless it has one; False where all are ``used``, which has the
        adapters that sequences need. Called between two forwards.
        """
        if not self.holds(key):
            place = self._free.pop() if self._free else self._take_place(used())
            if place is None:
                return False
            self._fill(self._known[key], place, self.layers)
            self._places[key] = place
            self._numbers[key] = place + 1
            self.num_loads += 1
        self._places.move_to_end(key)
        return True

    def _take_place(self, used: Collection[int]) -> int | None:
        """The place of the one that was begun with longest ago."""
        idle = next((key for key in self._places if key not in used), None)
        return None if idle is None else self._leave(idle)

    def _leave(self, key: int) -> int:
        del self._numbers[key]
        return self._places.pop(key)

    def _fill(self, adapter: Adapter, place: int, layers: Collection[str]) -> None:
        for name in layers:
            matrices = self.layers[name].matrices
            if matrices is not None:
                matrices.put(place, adapter.parts.get(name))

    def _change(self, current: Sequence[Adapter], computed: Sequence[Adapter]) -> Change:
        """With new matrices for layers that the places' have no room for."""
        grown = {}
        for name, layer in self.layers.items():
            rank = max((one.parts[name].rank for one in computed if name in one.parts), default=0)
            if rank > (0 if layer.matrices is None else max(layer.matrices.ranks)):
                grown[layer] = layer.empty_matrices((rank,) * self.max_loaded)
        return Change(current, computed, grown)

    def take_up(self, change: Change) -> None:
        super().take_up(change)
        grown = [name for name, layer in self.layers.items() if layer in change.matrices]
        for key, place in self._places.items():
            self._fill(self._known[key], place, grown)

    def _name(self, current: Sequence[Adapter], computed: Sequence[Adapter]) -> None:
        super()._name(current, computed)
        self._known = {one.key: one for one in computed}
        self._numbers = {0: 0, **{key: place + 1 for key, place in self._places.items()}}
        self._free += [self._leave(key) for key in self._places.keys() - self._known.keys()]
