"""Options of ``hf-triton serve`` for OpenAI's API that are refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_triton.cli import main as cli

PORT = ("--openai-port", "9000")
ELSEWHERE = (*PORT, "--triton-url", "x:1")
IGNORED = (
    *(("--verbose",), ("--open-admin-apis",), ("--http-port", "8100")),
    *(("--drain-s", "1"), ("--max-restarts", "0"), ("--health-port", "0"), ("--repository", "x")),
    *(("--load-timeout-s", "9"), ("--admin-key-file", "x")),
)


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (("--triton-url", "localhost:8001"), 2, "--triton-url needs --openai-port"),
        (("--openai-key-file", "x"), 2, "use --api-keys-file, whose keys every port takes"),
        *(((*ELSEWHERE, *given), 2, f"leave out {given[0]}") for given in IGNORED),
        ((*PORT, "--triton-url", "http://x:1"), 2, "expected HOST:PORT"),
        ((*PORT, "--triton-url", "x"), 2, "expected HOST:PORT"),
        (("--openai-port", "0"), 2, "expected a port"),
        ((*PORT, "--openai-cors=a"), 2, "use cors in the server: block of models.yaml"),
        (("--api-keys-file=none",), 1, "can't be read: No such file"),
        ((*ELSEWHERE, "--config=models.yaml"), 1, "models.yaml:1:24: "),
        ((*ELSEWHERE, "--config=none.yaml"), 1, "none.yaml: "),
    ],
)
def test_a_wrong_command_line_is_told(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "models.yaml").write_text("server: {max_body_mib: 0}\n")
    monkeypatch.chdir(tmp_path)
    try:
        found: object = cli.main(["serve", *arguments])
    except SystemExit as ended:
        found = ended.code
    assert (found, said in capsys.readouterr().err) == (code, True)
