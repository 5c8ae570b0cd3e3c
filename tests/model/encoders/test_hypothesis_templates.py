"""A hypothesis template means what Python's ``str.format`` makes of it, or is refused."""

from __future__ import annotations

import pytest

from hf_triton.zero_shot_classification.options import hypothesis, template_problem


@pytest.mark.parametrize("template", ["It is {}.", "{{}} is {}", "{{{}}}", "{}", "100 %{{ {}"])
def test_braces_are_formatted_as_python_does(template: str) -> None:
    assert template_problem(template) is None
    assert hypothesis(template, "a {b}") == template.format("a {b}")


@pytest.mark.parametrize(
    "template, problem",
    [
        ("It is {{}}.", "without {}"),
        ("nothing", "without {}"),
        ("It is { {}.", "single brace"),
        ("It is {}}.", "single brace"),
        ("{} of {label}", "with more between braces"),
        ("{0.__class__} {}", "with more between braces"),
        ("{!r}", "with more between braces"),
        ("{:>90000000}", "with more between braces"),
    ],
)
def test_what_is_no_place_for_a_label_is_refused(template: str, problem: str) -> None:
    assert problem in str(template_problem(template))
