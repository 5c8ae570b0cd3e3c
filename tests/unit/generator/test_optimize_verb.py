"""``hf-triton optimize``: what is refused before anything is computed or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_triton.cli import main as cli
from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL


def test_an_unknown_model_is_named_beside_those_that_there_are(work: Path, run: Run) -> None:
    (work / "models.yaml").write_text(ONE_MODEL)
    assert run("optimize", "dmo") == (
        1,
        "",
        "hf-triton: models.yaml has no model 'dmo'; did you mean 'demo'?\n",
    )
    assert [path.name for path in work.iterdir()] == ["models.yaml"]


def test_a_model_whose_task_has_no_engines_to_compare_is_refused(work: Path, run: Run) -> None:
    (work / "models.yaml").write_text(ONE_MODEL)
    code, out, err = run("optimize", "demo")
    assert (code, out) == (1, "")
    assert "model 'demo' is of the task fake-task, which has no engines to compare" in err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--engines", "tensorflow"], "got 'tensorflow', expected some of torch, onnxruntime"),
        (["--engines", ","], "expected some of torch, onnxruntime"),
        (["--lengths", "16,long"], "got '16,long', expected whole numbers such as 16,128"),
        (["--batch-sizes", "0"], "got '0', expected whole numbers"),
        (["--seconds", "-1"], "got '-1', expected a number above 0"),
        (["--tolerance", "nan"], "got 'nan', expected a number above 0"),
        ([], "MODEL"),
    ],
)
def test_a_wrong_command_line_says_what_is_allowed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["demo"] if arguments else []
    with pytest.raises(SystemExit) as caught:
        cli.main(["optimize", *model, *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
