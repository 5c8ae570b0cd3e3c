"""``hooks``, ``metrics`` and ``response_cache`` of models.yaml, and what comes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from generator.models_yaml.reading import load
from generator.spec.model_spec import ModelSpec, ResponseCache
from tests.unit.generator.workspace import ONE_MODEL, ONE_STREAMING_MODEL

Run = Callable[..., tuple[int, str, str]]

HOOKS = "def preprocess(request):\n    request['IN'] = 'x'\n"
WITH_HOOKS = "    hooks: my_hooks.py\n"


def write(work: Path, yaml: str, hooks: str | bytes = HOOKS) -> None:
    (work / "models.yaml").write_text(yaml)
    content = hooks.encode() if isinstance(hooks, str) else hooks
    (work / "my_hooks.py").write_bytes(content)


def read_one(work: Path) -> ModelSpec:
    return load(work / "models.yaml")[0]


def mistakes(run: Run) -> list[str]:
    code, _, err = run("validate")
    assert code == 1
    return [line for line in err.splitlines() if line.startswith("models.yaml:")]


def make_deterministic(work: Path, task: str) -> None:
    options = work.parent / "templates" / task / "options.py"
    named = "class Options:\n"
    options.write_text(options.read_text().replace(named, f"{named}    DETERMINISTIC = True\n"))


@pytest.mark.parametrize(
    "hooks, message",
    [
        ("x = 1\ndef preprocess(request:\n", "my_hooks.py:2: '(' was never closed"),
        ("\n\nreturn 3\n", "my_hooks.py:3: 'return' outside function"),
        ("def process(request):\n    pass\n", "neither preprocess(request) nor postprocess"),
        ("", "my_hooks.py has neither preprocess(request) nor postprocess(response) at its"),
        ("\0", "my_hooks.py"),
        (b"\xff\xfe\x00" + HOOKS.encode(), "my_hooks.py"),
    ],
)
def test_a_mistake_in_the_hooks_file_has_both_places(
    hooks: str | bytes, message: str, work: Path, run: Run
) -> None:
    write(work, ONE_MODEL + WITH_HOOKS, hooks)
    (line,) = mistakes(run)
    assert line.startswith("models.yaml:5:12: models[0].hooks: my_hooks.py")
    assert message in line


@pytest.mark.threat("hooks-at-validation")
def test_hooks_are_never_run_by_the_generator(work: Path, run: Run) -> None:
    write(work, ONE_MODEL + WITH_HOOKS, f"open('ran', 'w')\nimport no_such_module\n{HOOKS}")
    assert run("generate")[0] == 0
    assert not (work / "ran").exists()


METRICS = """\
    metrics:
      answers_total: {type: counter, help: Answers, labels: [label]}
      length: {type: histogram, buckets: [1, 2.5]}
"""


def test_two_models_may_share_a_metric(work: Path) -> None:
    second = ONE_MODEL.removeprefix("models:\n").replace("demo", "second")
    write(work, f"{ONE_MODEL}{WITH_HOOKS}{METRICS}{second}{WITH_HOOKS}{METRICS}")
    specs = load(work / "models.yaml")
    assert specs[0].metrics == specs[1].metrics


@pytest.mark.parametrize(
    "text, expected",
    [
        ("true", ResponseCache(64)),
        ("{size_mib: 256}", ResponseCache(256)),
        ("{}", ResponseCache(64)),
        ("false", None),
    ],
)
def test_a_deterministic_task_can_have_a_response_cache(
    text: str, expected: ResponseCache | None, work: Path, run: Run
) -> None:
    make_deterministic(work, "fake_task")
    write(work, f"{ONE_MODEL}    response_cache: {text}\n")
    assert read_one(work).response_cache == expected
    run("generate")
    values = json.loads((work / "model_repository/demo/1/model.json").read_text())
    assert values.get("response_cache_mib") == (expected and expected.size_mib)


def test_a_streamed_answer_is_not_cached(work: Path, run: Run) -> None:
    make_deterministic(work, "fake_stream")
    write(work, f"{ONE_STREAMING_MODEL}    response_cache: true\n")
    expected = "expected false: a streamed answer can't be cached; or set streaming: false"
    assert mistakes(run)[-1] == f"models.yaml:5:21: models[0].response_cache: {expected}"
