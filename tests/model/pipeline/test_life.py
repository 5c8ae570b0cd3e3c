"""Loading, serving many at once, counting, unloading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import custom_metrics
import pytest
from triton_model_exception import TritonModelException
from wire import Request, strings

from hf_triton.cli import main as cli
from hf_triton.pipeline.pipeline_loading import pipeline_name
from hf_triton.pipeline.request import CallParameters
from hf_triton.runtime.errors import LoadError
from tests.model.pipeline.conftest import Serve
from tests.support.media_files import png

IMAGES, MASKS = "image-classification", "fill-mask"


def texts(*values: str) -> Request:
    return Request({"inputs": strings(*values)})


def refusal(serve: Serve, name: str, **options: Any) -> str:
    """The error of a model that does not load."""
    with pytest.raises(TritonModelException) as caught:
        serve(name, **options)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    "asked, said",
    [
        ("image-clasification", "did you mean image-classification?"),
        ("zzz", "allowed: any-to-any, audio-classification"),
        ("question-answering", "use task: question-answering"),
        ("translation_en_to_fr", "use task: text2text-generation"),
        ("video-classification", "opens videos by their path or address only"),
    ],
)
def test_a_pipeline_that_is_not_there_is_named(asked: str, said: str) -> None:
    with pytest.raises(LoadError, match=r"^options\.pipeline: ") as caught:
        pipeline_name(asked)
    assert said in str(caught.value)


def test_a_pipelines_other_name_is_taken() -> None:
    assert pipeline_name("sentiment-analysis") == "text-classification"


def test_models_yaml_must_name_the_pipeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("models: [{name: a, task: pipeline, model: org/a}]\n")
    assert cli.main(["validate", "--config", str(path)]) == 1
    said = capsys.readouterr().err
    assert "options.pipeline: got nothing, expected the name of a transformers pipeline" in said


def test_a_model_of_another_task_is_refused(serve: Serve) -> None:
    line = refusal(serve, IMAGES, pipeline="audio-classification")
    assert "the audio-classification pipeline has no model for vit (ViTForImageCl" in line


def test_a_model_without_its_processor_is_refused(
    serve: Serve, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tiny_model(IMAGES)
    kept = (folder / "preprocessor_config.json").read_text()
    (folder / "preprocessor_config.json").unlink()
    try:
        line = refusal(serve, IMAGES)
    finally:
        (folder / "preprocessor_config.json").write_text(kept)
    assert "the image-classification pipeline can't be made: OSError" in line


@pytest.mark.parametrize(
    "parameters, said",
    [
        ("", "options.parameters: not valid JSON at line 1, column 1"),
        ("top_k: 3", "options.parameters: not valid JSON at line 1, column 1"),
        ('{"topk": 3}', "options.parameters: unknown parameter topk of"),
    ],
)
def test_default_parameters_are_checked_at_load(serve: Serve, parameters: str, said: str) -> None:
    assert said in refusal(serve, IMAGES, parameters=parameters)


def test_a_request_wins_over_the_default_parameters(serve: Serve) -> None:
    server = serve(IMAGES, parameters='{"top_k": 1}')
    image = {"image": strings(png())}
    assert len(json.loads(server.infer(Request(image)).texts("output")[0])) == 1
    more = Request(image, {"top_k": 3})
    assert len(json.loads(server.infer(more).texts("output")[0])) == 3


def test_a_faster_task_is_hinted_at(serve: Serve, log_lines: list[str]) -> None:
    serve("text-classification")
    assert any("task: text-classification serves" in line for line in log_lines)
    assert any("text-classification pipeline, loaded in" in line for line in log_lines)


COUNTED = {
    "finished_total stop": 1,
    "finished_total refused": 1,
    "queue_time_seconds_count": 2,
    "batch_size_count": 1,
    "waiting": 0,
}


def counted() -> dict[str, float]:
    """The numbers that /metrics shows, of all models that this process has served."""
    found = {}
    for name in COUNTED:
        family, *reason = name.split()
        labels = {"finish_reason": reason[0]} if reason else {}
        found[name] = custom_metrics.value(f"hf_triton_{family}", model="served", **labels)
    return found


def test_what_happens_is_counted(serve: Serve) -> None:
    server = serve(MASKS)
    before = counted()
    assert server.infer(texts("the [MASK]")).ok
    assert not server.infer(texts("the cat")).ok
    server.unload()
    after = counted()
    assert {name: after[name] - before[name] for name in COUNTED} == COUNTED


@pytest.mark.threat("code-by-request")
def test_no_pipeline_lets_callers_name_what_is_opened(own_pipeline: Callable[[str], Any]) -> None:
    """No parameter of any pipeline that is made here loads anything."""
    loads = {
        *("custom_generate", "trust_remote_code", "assistant_model", "tokenizer", "timeout"),
        *("chat_template", "tesseract_config", "processor_kwargs", "generation_config"),
        *("num_workers", "batch_size", "streamer", "decoder_kwargs", "images"),
    }
    for name in ("text-generation", "automatic-speech-recognition", "image-classification"):
        assert not CallParameters(name, own_pipeline(name)).names & loads


def test_hooks_lead_requests_to_a_pipeline(serve: Serve, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks.py"
    hooks.write_text("def preprocess(request):\n    request['inputs'] = 'the [MASK]'\n")
    server = serve(MASKS, model_keys={"hooks": str(hooks)})
    assert server.infer(texts("no mask at all")).ok
