"""Whom to ask for a model's files: the Hub, or the object store that an address names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

from generator.fetch import hub_client, object_store
from generator.fetch.hub_client import HubFile, Listing
from generator.spec.runtime_rules import is_stored

Opened: TypeAlias = AbstractContextManager[tuple[int, Iterator[bytes]]]


def list_files(repository: str, revision: str) -> Listing:
    """What a revision, or a store's folder, holds. Raises what the client raises."""
    if is_stored(repository):
        return object_store.list_files(repository)
    return hub_client.list_files(repository, revision)


def open_file(repository: str, commit: str, path: str, offset: int, file: HubFile) -> Opened:
    """Where the bytes that follow begin, and the bytes. Raises what the client raises."""
    if is_stored(repository):
        return object_store.open_file(repository, path, offset, file)
    return hub_client.open_file(repository, commit, path, offset, file)
