"""Tiny models of each family, saved once, and their answers by transformers itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.text2text.reference import Reference
from tests.support.text2text.tiny_translators import make

Folders = Callable[[str], Path]
References = Callable[[str], Reference]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The folder of a family's model, made when it is first asked for."""
    root = tmp_path_factory.mktemp("translators")

    @cache
    def folder(name: str) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Marian's: sacremoses is recommended
            return make(name, root / name)

    return folder


@pytest.fixture(scope="session")
def references(folders: Folders) -> References:
    """The same model without any server."""
    return cache(lambda name: Reference(folders(name)))
