from __future__ import annotations

import pytest

from generator.spec.reachable import reachable


def reached(model: str, others: dict[str, str]) -> set[str]:
    """The files that such a model.py reaches beside itself."""
    sources = {path: text.encode() for path, text in {"model.py": model, **others}.items()}
    return reachable(sources) - {"model.py"}


@pytest.mark.parametrize(
    "line",
    [
        "import shared.log",
        "import torch, shared.log as log",
        "from shared.log import begin",
        "from shared import log",
        "from .shared import log",
        "from .shared.log import begin",
        "def load():\n    from shared import log",
        "try:\n    import fast\nexcept ImportError:\n    import shared.log",
        "class Model:\n    with quiet():\n        from shared import log",
        "if fast:\n    pass\nelse:\n    from shared import log",
        "match kind:\n    case 1:\n        from shared import log",
    ],
)
def test_an_import_brings_its_module(line: str) -> None:
    assert reached(line, {"shared/log.py": "", "shared/other.py": ""}) == {"shared/log.py"}


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_what_only_type_checkers_import_stays_behind(test: str) -> None:
    text = f"if {test}:\n    from .a import A\nelse:\n    from .b import A"
    assert reached(text, {"a.py": "", "b.py": ""}) == {"b.py"}


def test_what_is_imported_brings_its_own_imports_and_circles_end() -> None:
    others = {"a.py": "from .deep.inner import b", "deep/inner/b.py": "from ... import a"}
    assert reached("from . import a", others) == set(others)


def test_packages_on_the_way_come_along_with_what_they_import() -> None:
    package = {"a/__init__.py": "from .named import x", "a/named.py": "", "a/b/c.py": ""}
    others = {"__init__.py": "", **package}
    assert reached("import a.b.c", {**others, "a/idle.py": ""}) == set(others)


def test_a_package_may_be_what_is_imported() -> None:
    assert reached("from . import a", {"a/__init__.py": ""}) == {"a/__init__.py"}


def test_what_nothing_imports_stays_behind_unless_it_is_started_by_name() -> None:
    program = 'from . import needed\n\nif __name__ == "__main__":\n    main()\n'
    started = {"shared/run.py": program, "shared/needed.py": "", "tool/__main__.py": ""}
    assert reached("", {**started, "shared/idle.py": ""}) == set(started)


def test_a_file_that_a_module_reads_beside_itself_comes_along() -> None:
    others = {"a/b.py": 'SOURCE = Path(__file__).with_name("kernels.py")', "a/kernels.py": ""}
    assert reached("import a.b", {**others, "kernels.py": ""}) == set(others)
