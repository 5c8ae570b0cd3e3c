"""Triton's side of every encoder task; a task's class names its options and its task."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from hf_triton.runtime.engine.triton_model import Loader, TritonModel

if TYPE_CHECKING:
    from .options import EncoderOptions
    from .task import EncoderTask

Parts: TypeAlias = "tuple[type[EncoderOptions], type[EncoderTask]]"


class EncoderModel(TritonModel):
    """One instance of a served encoder: all of it, or one step of an ensemble."""

    @abstractmethod
    def parts(self) -> Parts:
        """The classes of the task's options and of the task."""

    def loader(self) -> Loader:
        from .reception import serve

        return partial(serve, *self.parts())
