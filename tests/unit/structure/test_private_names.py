"""Tests know the product by its public names alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
PRIVATE = re.compile(r"(.*\.)?_(?!_)\w+")
LIBRARIES = {  # the names of others, which have no public one for the same
    *("_C", "_exit", "_is_mkldnn_bf16_supported", "_forward_pre_hooks", "_replace"),
    *("_attn_implementation", "_experts_implementation", "_can_set_attn_implementation"),
    *("_cached_compile_jinja_template", "_get_template_variables", "_get_model_config"),
    *("_skip_keys_device_placement", "_getattr_without_heterogeneous_validation"),
    "_retrieve_avg_logprobs",
}


def private_names(text: str) -> Iterator[str]:
    """The private names in a test's source that are not of its own objects."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        match node:
            case ast.ImportFrom():
                names = [alias.name for alias in node.names]
            case ast.Attribute(value=ast.Name("self" | "cls") | ast.Call(ast.Name("super"))):
                pass
            case ast.Attribute(attr=name):
                names = [name]
            case ast.Call(ast.Name("getattr") | ast.Attribute(attr="setattr" | "delattr")):
                names = [str(one.value) for one in node.args[:2] if isinstance(one, ast.Constant)]
        yield from {*filter(PRIVATE.fullmatch, names)} - LIBRARIES


def test_no_test_knows_a_private_name_of_the_product() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.rglob("*.py")
        for name in private_names(path.read_text(encoding="utf-8"))
    ]
    assert found == []
