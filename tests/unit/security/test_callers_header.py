"""The header that names a caller is passed on by Triton, whatever else is."""

from __future__ import annotations

import re

import pytest

from hf_triton.runtime.request.request_parameters import CALLER
from hf_triton.tritonserver.restrictions import forwarding

OURS = [f"--grpc-header-forward-pattern=(?i:^{CALLER}$)"]


def test_the_callers_header_is_passed_on() -> None:
    assert forwarding([]) == OURS
    assert forwarding(["--log-verbose=1"]) == [*OURS, "--log-verbose=1"]


@pytest.mark.parametrize("flag", ["--grpc-header-forward-pattern", "--grpc-he"])
def test_a_pattern_of_ones_own_holds_beside_it(flag: str) -> None:
    [*ours, widened] = forwarding([f"{flag}=^x-(a|b)=c$"])
    assert ours == OURS
    name, _, pattern = widened.partition("=")
    assert name == flag
    for header in ("x-a=c", "x-b=c", CALLER, "HF-Triton-Caller"):
        assert re.search(pattern, header), header
    for header in ("x-c", f"x-{CALLER}", f"{CALLER}-x"):
        assert not re.search(pattern, header), header


def test_an_empty_pattern_is_none() -> None:
    assert forwarding(["--grpc-header-forward-pattern="])[-1] == OURS[0]
    other = "--http-header-forward-pattern=x"
    assert forwarding([other]) == [*OURS, other]
