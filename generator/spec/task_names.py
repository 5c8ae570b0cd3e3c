"""The task of a model that nobody has named: by a tag of the Hub, or by the names and the JSON of a
model's files. Knows neither the Hub nor a disk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

# Other names that people have for tasks: the Hub's tags, and pipelines of transformers.
_OTHER_NAMES = {
    "feature-extraction": ("sentence-similarity", "embeddings"),
    "text-classification": ("sentiment-analysis", "text-ranking", "reranking"),
    "token-classification": ("ner",),
    "text-generation": ("conversational",),
    "image-text-to-text": ("image-to-text", "visual-question-answering", "vqa"),
    "automatic-speech-recognition": ("asr", "speech-to-text"),
    # Former names of transformers' pipelines: one model had several, as translation_en_to_de.
    "text2text-generation": ("summarization", "translation"),
}
_PIPELINES = re.compile(
    r"(zero-shot-)?(image|audio|object|video|mask|depth|keypoint)-[a-z-]+"
    r"|text-to-(audio|speech)|any-to-any"
    r"|(document|table)-question-answering"
)
# The ends of the names of transformers' classes, and the tasks of each, the likeliest first.
HEADS = {
    "ForCausalLM": ("text-generation",),
    "LMHeadModel": ("text-generation",),
    "WithLMHeadModel": ("fill-mask",),
    "ForConditionalGeneration": ("text2text-generation",),
    "EncoderDecoderModel": ("text2text-generation",),
    "MTModel": ("text2text-generation",),
    "ForSequenceClassification": ("text-classification", "zero-shot-classification"),
    "ForTokenClassification": ("token-classification",),
    "ForQuestionAnswering": ("question-answering",),
    "ForMaskedLM": ("fill-mask", "feature-extraction"),
    "ForPreTraining": ("fill-mask", "feature-extraction"),
    "ForCTC": ("automatic-speech-recognition",),
    "Model": ("feature-extraction",),
    "HF_ColBERT": ("feature-extraction",),
}
_WRITES = ("ForConditionalGeneration", "EncoderDecoderModel", "ForCausalLM")
_OF_TEXTS_ALONE = {"text2text-generation", "feature-extraction", "text-classification"}
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
CONFIG, _MODULES = "config.json", "modules.json"


class Fit(NamedTuple):
    """A task that serves a model, and its pipeline where that is one of transformers."""

    task: str
    pipeline: str = ""


def fit_of(tag: str, tasks: Collection[str]) -> Fit | None:
    """The task of this name, or another name of one of ``tasks``."""
    others = [task for task, names in _OTHER_NAMES.items() if tag.partition("_")[0] in names]
    for name in (tag, *others):
        if name in tasks and name != "pipeline":
            return Fit(name)
    is_pipeline = "pipeline" in tasks and _PIPELINES.fullmatch(tag)
    return Fit("pipeline", tag) if is_pipeline else None


def task_hint(tag: str, tasks: Collection[str]) -> str:
    """``; did you mean ...`` for another name of one of ``tasks``; empty where it is none."""
    fit = fit_of(tag, tasks)
    options = f", with options: {{pipeline: {tag}}}" if fit and fit.pipeline else ""
    return f"; did you mean '{fit.task}'{options}?" if fit else ""


def fits_of_files(
    names: Collection[str], read: Callable[[str], Mapping[str, Any]], tasks: Collection[str]
) -> tuple[list[Fit], str]:
    """The tasks that fit a model of these files, the likeliest first, and its architectures;
    ``read`` parses JSON.
    """
    config = read(CONFIG) if CONFIG in names else {}
    processors = json.dumps([read(name) for name in _PROCESSORS if name in names])
    architectures = [str(one) for one in config.get("architectures") or ()]
    tags = ["feature-extraction"] if _MODULES in names else []
    if any(one.endswith("ForSequenceClassification") for one in architectures):
        tags = []  # a cross-encoder
    for architecture in architectures:
        tags += _tags_of(architecture, config, processors)
    fits = [fit for tag in dict.fromkeys(tags) if (fit := fit_of(tag, tasks))]
    return fits, ", ".join(architectures)


def _tags_of(architecture: str, config: Mapping[str, Any], processors: str) -> Iterator[str]:
    sees = "vision_config" in config or "image_" in processors
    hears = "audio_config" in config or "sampling_rate" in processors
    if architecture.endswith(_WRITES):
        if sees:
            yield "image-text-to-text"
        if hears:
            has_text = "text_config" in config or "audio_config" in config
            yield "audio-text-to-text" if has_text else "automatic-speech-recognition"
    head = max((one for one in HEADS if architecture.endswith(one)), key=len, default="")
    found = set(HEADS.get(head, ()))
    if sees or hears:
        found -= _OF_TEXTS_ALONE
    if "entail" not in json.dumps(config.get("id2label", {})).lower():
        found.discard("zero-shot-classification")
    yield from (tag for tag in HEADS.get(head, ()) if tag in found)
    if hears and head == "ForSequenceClassification":
        yield "audio-classification"
    if not head and "For" in architecture:  # ViTForImageClassification
        words = re.findall("[A-Z][a-z]+", architecture.rpartition("For")[2])
        yield "-".join(words).lower()
