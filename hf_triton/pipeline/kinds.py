"""The input types of each transformers pipeline, and the pipelines that have a task of their own
here. Unknown pipelines of newer releases take texts and JSON unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Main = Literal[
    "text", "image", "image_pair", "audio", "document", "detection", "prompt", "table", "decision"
]


@dataclass(frozen=True)
class Kind:
    """What a pipeline takes. ``main`` is the kind of one input. ``takes_chat``: a list of messages
    is one input too; ``takes_pair``: {"text", "text_pair"} is one input too.

    ``needs_labels``: every call must have ``candidate_labels``. ``batches_safely``: padding and the
    other inputs of a batch change an answer by no more than rounding. ``package``: the Python
    package that the pipeline needs beside transformers.
    """

    main: Main = "text"
    takes_chat: bool = False
    takes_pair: bool = False
    needs_labels: bool = False
    batches_safely: bool = False
    package: str | None = None


def _image(*, needs_labels: bool = False, batches_safely: bool = False) -> Kind:
    return Kind("image", needs_labels=needs_labels, batches_safely=batches_safely, package="PIL")


KINDS: dict[str, Kind] = {
    "audio-classification": Kind("audio", package="soundfile"),
    "automatic-speech-recognition": Kind("audio", package="soundfile"),
    "zero-shot-audio-classification": Kind("audio", needs_labels=True, package="soundfile"),
    "image-classification": _image(batches_safely=True),
    "image-feature-extraction": _image(batches_safely=True),
    "zero-shot-image-classification": _image(needs_labels=True, batches_safely=True),
    "image-segmentation": _image(),
    "object-detection": _image(),
    "depth-estimation": _image(),
    "mask-generation": _image(),
    "keypoint-matching": Kind("image_pair", package="PIL"),
    "document-question-answering": Kind("document", package="PIL"),
    "zero-shot-object-detection": Kind("detection", needs_labels=True, package="PIL"),
    "image-text-to-text": Kind("prompt", takes_chat=True, package="PIL"),
    "any-to-any": Kind("prompt", takes_chat=True, package="PIL"),
    "table-question-answering": Kind("table", package="pandas"),
    "decision": Kind("decision"),
    "text-classification": Kind(takes_pair=True, batches_safely=True),
    "zero-shot-classification": Kind(needs_labels=True, batches_safely=True),
    "fill-mask": Kind(batches_safely=True),
    "feature-extraction": Kind(),
    "token-classification": Kind(),
    "text-generation": Kind(takes_chat=True),
    "text-to-audio": Kind(takes_chat=True, package="soundfile"),
}
# Served faster by the task of the same name, which has its own engine.
OWN_TASKS = (
    *("feature-extraction", "text-classification", "token-classification", "fill-mask"),
    *("zero-shot-classification", "text-generation", "image-text-to-text"),
)
# Removed from transformers or never served here: what to use instead.
ELSEWHERE = {
    "question-answering": "use task: question-answering",
    "text2text-generation": "use task: text2text-generation",
    "summarization": "use task: text2text-generation",
    "translation": "use task: text2text-generation",
    "visual-question-answering": "use task: image-text-to-text with a vision-language model",
    "vqa": "use task: image-text-to-text with a vision-language model",
    "image-to-text": "use task: image-text-to-text",
    "video-classification": "it opens videos by their path or address only, which is not served",
}
