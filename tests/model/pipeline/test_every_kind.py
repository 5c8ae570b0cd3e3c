"""Each of the rarer kinds of pipelines answers what transformers' own gives."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from hf_triton.pipeline.kinds import ELSEWHERE, KINDS
from hf_triton.pipeline.loading import kind_of_pipeline
from hf_triton.runtime.errors import LoadError
from tests.model.pipeline.conftest import Serve
from tests.model.pipeline.test_results import answers, near
from tests.support.media_files import base64_text, picture, png, sound_file, tone

Own = Callable[[str], Any]


def test_every_pipeline_of_transformers_has_a_kind() -> None:
    from transformers.pipelines import SUPPORTED_TASKS

    assert set(SUPPORTED_TASKS) <= {*KINDS, *ELSEWHERE}


def test_objects_are_found_in_an_image(shared: Serve, own_pipeline: Own) -> None:
    [found] = answers(
        shared("object-detection"), image=png(), pipeline_parameters='{"threshold": 0}'
    )
    expected = own_pipeline("object-detection")(picture(), threshold=0)
    assert expected
    assert found == near(expected)


def test_an_image_is_segmented_into_masks(shared: Serve, own_pipeline: Own) -> None:
    [found] = answers(shared("image-segmentation"), image=png())
    expected = own_pipeline("image-segmentation")(picture())
    assert [part["label"] for part in found] == [part["label"] for part in expected]
    packed = found[0]["mask"].split(",")[1]
    pixels = np.array(Image.open(io.BytesIO(base64.b64decode(packed))))
    np.testing.assert_array_equal(pixels, np.array(expected[0]["mask"]))


@pytest.mark.parametrize("form", ["tensors", "JSON"])
def test_objects_are_found_by_their_labels(shared: Serve, own_pipeline: Own, form: str) -> None:
    server, labels = shared("zero-shot-object-detection"), ["a cat", "the mat"]
    parameters = '{"threshold": 0, "top_k": 2}'
    if form == "tensors":
        [found] = answers(
            server, image=png(), candidate_labels=labels, pipeline_parameters=parameters
        )
    else:
        sent = json.dumps({"image": base64_text(png()), "candidate_labels": labels})
        [found] = answers(server, inputs=sent, pipeline_parameters=parameters)
    own = own_pipeline("zero-shot-object-detection")
    expected = own(picture(), candidate_labels=labels, threshold=0, top_k=2)
    assert expected
    assert found == near(expected)


def test_a_documents_question_is_answered(shared: Serve, own_pipeline: Own) -> None:
    boxes = [["Anna", [0, 0, 9, 9]], ["lives", [10, 0, 19, 9]], ["in", [20, 0, 25, 9]]]
    sent = {"question": "who lives in Paris ?", "word_boxes": boxes}
    [found] = answers(shared("document-question-answering"), inputs=json.dumps(sent))
    assert found == near(own_pipeline("document-question-answering")([sent])[0])


def test_a_text_is_spoken(shared: Serve, own_pipeline: Own) -> None:
    [found] = answers(shared("text-to-audio"), inputs="the cat sat")
    expected = own_pipeline("text-to-audio")("the cat sat")
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(found["audio"].split(",")[1])))
    assert rate == found["sampling_rate"] == expected["sampling_rate"]
    np.testing.assert_allclose(samples, np.asarray(expected["audio"]).reshape(-1), atol=1e-3)


def test_a_sound_is_classified_by_labels_it_never_saw(shared: Serve, own_pipeline: Own) -> None:
    labels = ["a dog", "the sky"]
    server = shared("zero-shot-audio-classification")
    [found] = answers(server, audio=sound_file(tone(1.0)), candidate_labels=labels)
    own = own_pipeline("zero-shot-audio-classification")
    assert found == near(own(tone(1.0), candidate_labels=labels))


def test_tokens_are_tagged(serve: Serve, own_pipeline: Own) -> None:
    server = serve("token-classification", parameters='{"aggregation_strategy": "simple"}')
    [found] = answers(server, inputs="Anna lives in Paris")
    own = own_pipeline("token-classification")
    assert found == near(json.loads(json.dumps(plain(own("Anna lives in Paris", **SIMPLE)))))


SIMPLE = {"aggregation_strategy": "simple"}


def plain(value: Any) -> Any:
    """numpy's numbers as Python's."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def test_an_images_features_are_numbers(shared: Serve, own_pipeline: Own) -> None:
    [found] = answers(shared("image-feature-extraction"), image=png())
    np.testing.assert_allclose(
        found, own_pipeline("image-feature-extraction")(picture()), atol=1e-4
    )


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_triton.pipeline.loading.importlib.util.find_spec", lambda name: None)
    with pytest.raises(LoadError, match="image-classification pipeline needs pillow: pip install"):
        kind_of_pipeline("image-classification")
