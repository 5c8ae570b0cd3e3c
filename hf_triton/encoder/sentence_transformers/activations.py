"""The functions of torch.nn that sentence-transformers' files name."""

from __future__ import annotations

from torch import nn

from hf_triton.runtime.errors import LoadError


def activation(key: str, name: str | None) -> nn.Module:
    """The torch module of a dotted name such as ``torch.nn.modules.activation.Tanh``; ``key`` is
    the one that names it.

    Raises:
        LoadError: it is none of torch.nn's, or needs more than its name.
    """
    if name is None:
        return nn.Identity()
    package, _, last = str(name).rpartition(".")
    found = getattr(nn, last, None)
    known = package.split(".")[:2] == ["torch", "nn"]
    if not known or not isinstance(found, type) or not issubclass(found, nn.Module):
        raise LoadError(f"{key} {name} is none of torch.nn's")
    try:
        return found().eval()
    except TypeError:
        raise LoadError(f"{key} {name} is no function: it has sizes, which no file names") from None
