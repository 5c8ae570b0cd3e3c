"""Tasks that exist only in tests: each a folder of templates with its options beside them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from generator.spec import task_folders

_of_library = task_folders.options_of


def use_tasks(templates: Path, change: Callable[[object, str, object], None] = setattr) -> None:
    """Makes the folders in ``templates`` the only tasks; ``change`` sets an attribute."""
    change(task_folders, "default_directory", lambda: templates)
    change(task_folders, "options_of", _options_of)


def _options_of(folder: Path) -> Any:
    path = folder / "options.py"
    if not path.exists():
        return _of_library(folder)
    module = types.ModuleType(f"options_of_{folder.name}_{hash(path)}")
    sys.modules[module.__name__] = module  # dataclasses look their annotations up there
    exec(compile(path.read_text(), path, "exec"), vars(module))
    return module.Options
