"""Chooses the client for a model's files: the Hub, or an object store by its address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

from generator.fetch import hub_client, object_store
from generator.fetch.hub_client import HubFile, Listing
from generator.spec.runtime_rules import is_stored

Opened: TypeAlias = AbstractContextManager[tuple[int, Iterator[bytes]]]


def list_files(repository: str, revision: str) -> Listing:
    """Lists the files of a revision or of a store's folder. Raises the client's errors."""
    if is_stored(repository):
        return object_store.list_files(repository)
    return hub_client.list_files(repository, revision)


def open_file(repository: str, commit: str, path: str, offset: int, file: HubFile) -> Opened:
    """Returns the offset at which the bytes begin, and the bytes. Raises the client's errors."""
    if is_stored(repository):
        return object_store.open_file(repository, path, offset, file)
    return hub_client.open_file(repository, commit, path, offset, file)
