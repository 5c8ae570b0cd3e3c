"""The admin key and where it comes from; the callers' header; options that would undo them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from generator.errors import ServerError, UsageError
from hf_triton.runtime.request.request_parameters import CALLER
from hf_triton.tritonserver.admin_key import VARIABLE, take_admin_key
from hf_triton.tritonserver.log import plain, secrets_of
from hf_triton.tritonserver.process import forwarding, refuse_clashes

KEY = "a-key-of-twenty-char"


def test_the_admin_key_comes_from_the_file_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    environment = {VARIABLE: "another-key-0123456"}
    assert take_admin_key(file, environment) == KEY
    assert environment == {}, "models have no business with it"
    assert take_admin_key(None, {VARIABLE: f" {KEY} "}) == KEY


@pytest.mark.threat("guessed-admin-key")
def test_every_start_has_a_new_key_that_would_do_as_a_given_one() -> None:
    keys = {take_admin_key(None, {}) for _ in range(20)}
    assert len(keys) == 20
    for key in keys:
        assert take_admin_key(None, {VARIABLE: key}) == key
        assert len(key) > 40


@pytest.mark.parametrize(
    "key", ["c2VjcmV0IHNlY3JldA==", "0123456789abcdef", "a.b_c~d+e/f=g-hi" * 16]
)
def test_keys_of_the_usual_tools_are_taken(key: str) -> None:
    assert take_admin_key(None, {VARIABLE: key}) == key


@pytest.mark.threat("guessed-admin-key")
@pytest.mark.parametrize(
    "key", ["", "  ", "short", "two words of it.....", "comma,comma,comma,", "é" * 20, "x" * 257]
)
def test_an_admin_key_that_can_not_be_one_is_refused_unquoted(key: str) -> None:
    with pytest.raises(ServerError, match=f"{VARIABLE}: expected one word of 16 to 256") as caught:
        take_admin_key(None, {VARIABLE: key})
    assert not key.strip() or key not in str(caught.value)


def test_an_admin_key_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"--admin-key-file .*none: can't be read: No such file"):
        take_admin_key(tmp_path / "none", {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ServerError, match="not a text"):
        take_admin_key(tmp_path / "binary", {})


@pytest.mark.threat("hub-token")
def test_secrets_are_masked_wherever_they_stand() -> None:
    token = "hf_" + "a" * 34
    secrets = [KEY, *secrets_of({"HF_TOKEN": "of-another-hub", "PRIVATE_REPO_TOKEN": "short"})]
    text = f"header {KEY}, {KEY}; of-another-hub refuses {token}; short"
    assert plain(text, secrets) == "header ***, ***; *** refuses hf_***; short"
    assert plain("as it is", [""]) == "as it is"


@pytest.mark.threat("own-restrictions")
@pytest.mark.parametrize(
    "flag", ["--http-restricted-api", "--http-r", "--grpc-restricted-protocol"]
)
def test_restrictions_of_ones_own_are_a_wrong_command_line(flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag}: leave it out, and use --api-keys") as caught:
        refuse_clashes([f"{flag}=inference:k={KEY}"])
    assert KEY not in str(caught.value)
    refuse_clashes(["--log-verbose=1", "--h"])


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
