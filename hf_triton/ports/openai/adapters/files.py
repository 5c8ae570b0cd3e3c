"""What the repository has of a model's adapters, and changes of it that the model takes up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from generator.errors import GeneratorError, RepositoryError
from generator.render.manifest import ADAPTERS_FILE, SOURCES_FILE
from generator.repository import writing as writer
from generator.repository.version_folders import newest_json
from hf_triton.ports.openai.adapters.sources import Sources
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.triton.catalog import ServedModel
from hf_triton.tritonserver import adapters

_UNAVAILABLE = "unavailable"


def adapters_now(repository: Path | None, folder: str) -> tuple[str, ...] | None:
    """What the newest version's adapters.json names; None where there is none."""
    with contextlib.suppress(TypeError, KeyError):
        listed = _newest(repository, folder, ADAPTERS_FILE)
        return tuple(str(adapter["name"]) for adapter in listed)
    return None


def sources(repository: Path, folder: str) -> Sources:
    """Where requests may load adapters from, by the newest version."""
    return _newest(repository, folder, SOURCES_FILE) or ()


def _newest(repository: Path | None, folder: str, file: str) -> Any:
    return newest_json(repository / folder, Path(file).name) if repository else None


def change(repository: Path, model: ServedModel, edit: Callable[[list[Any]], list[Any]]) -> None:
    """Has the model serve what ``edit`` makes of its adapters, and waits until it does; nothing is
    changed otherwise. Raises ApiError: 400 where it can't serve one, 503 where it is being changed
    by somebody else or does not get to it.
    """
    folder = repository / model.triton_name
    try:
        with _locked(repository), writer.locked_model(folder):
            adapters.change_list(folder, model.entry, edit)
    except adapters.AdaptersRefusedError as error:
        raise ApiError(400, str(error), "lora_path") from None
    except RepositoryError as error:
        raise ApiError(500, str(error)) from None
    except GeneratorError as error:
        raise ApiError(503, str(error), code=_UNAVAILABLE) from None


@contextlib.contextmanager
def _locked(repository: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(writer.locked(repository))
        except RepositoryError as error:
            raise ApiError(503, f"{error}; try again", code=_UNAVAILABLE) from None
        yield
