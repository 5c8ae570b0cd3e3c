"""Options of ``hf-triton serve`` for OpenAI's API that are refused before anything starts."""

from __future__ import annotations

import pytest

from hf_triton.cli import main as cli

PORT = ("--openai-port", "9000")


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (("--triton-url", "localhost:8001"), 2, "--triton-url is gone: run serve"),
        (("--openai-key-file", "x"), 2, "use --api-keys-file, whose keys every port takes"),
        (("--openai-media-hosts", "a.example"), 2, "--openai-media-hosts needs --openai-port"),
        (("--openai-port", "0"), 2, "expected a port"),
        ((*PORT, "--openai-cors=a"), 2, "use cors in the server: block of models.yaml"),
        (("--api-keys-file=none",), 1, "can't be read: No such file"),
    ],
)
def test_a_wrong_command_line_is_told(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        found: object = cli.main(["serve", *arguments])
    except SystemExit as ended:
        found = ended.code
    assert (found, said in capsys.readouterr().err) == (code, True)
