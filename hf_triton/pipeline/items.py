"""The input types of each transformers pipeline; reads one input from a text, a file's bytes, or a
JSON value. Every image and sound is decoded here: no text is left that transformers would open as a
path or an address. Unknown pipelines of newer releases take texts and JSON unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.media import decoding as media
from hf_triton.runtime.request.tensors import kind_of
from hf_triton.runtime.tokenizing.lengths import check_messages

Main = Literal[
    "text", "image", "image_pair", "audio", "document", "detection", "prompt", "table", "decision"
]


@dataclass(frozen=True)
class Kind:
    """The inputs of a pipeline. ``main`` is the kind of one input; with ``takes_chat`` a list of
    messages is one too, with ``takes_pair`` {"text", "text_pair"}.

    ``needs_labels``: every call must have ``candidate_labels``. ``batches_safely``: padding and the
    other inputs of a batch change an answer by no more than rounding. ``package`` is what the
    pipeline needs beside transformers.
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
_SOUND_KEYS = {"raw", "array", "sampling_rate", "audio"}


@dataclass(frozen=True)
class ChatMessages:
    messages: list[dict[str, Any]]


@dataclass(frozen=True)
class ItemReader:
    """Reads inputs for one pipeline. ``sampling_rate`` is the model's own, in Hz."""

    kind: Kind
    limits: media.MediaLimits
    sampling_rate: int

    def item(self, field: str, value: Any) -> Any:
        """Raises a RequestError that names ``field``."""
        if self.kind.takes_chat and is_chat(value):
            check_messages(field, value)
            return ChatMessages([self._message(field, message) for message in value])
        return getattr(self, f"_{self.kind.main}")(field, value)

    def image(self, field: str, value: Any) -> Any:
        """A PIL image from bytes or base64."""
        if not isinstance(value, bytes | str):
            raise RequestError(f"{field}: got {kind_of(value)}, allowed: an image in base64")
        return media.image(field, value, self.limits)

    def sound(self, field: str, value: Any) -> Any:
        """Samples at the model's rate from bytes, base64, or {"raw", "sampling_rate"}."""
        if isinstance(value, bytes | str):
            return media.sound(field, value, self.sampling_rate, self.limits)
        if not isinstance(value, dict) or not set(value) <= _SOUND_KEYS:
            allowed = 'a sound in base64, or {"raw": [numbers], "sampling_rate": Hz}'
            raise RequestError(f"{field}: got {kind_of(value)}, allowed: {allowed}")
        if "audio" in value:
            return self.sound(field, value["audio"])
        raw = value.get("raw", value.get("array"))
        if not isinstance(raw, list):
            raise RequestError(f"{field}: raw must be a list of numbers")
        rate = value.get("sampling_rate")
        return media.waveform(field, raw, rate, self.sampling_rate, self.limits)

    def _text(self, field: str, value: Any) -> Any:
        if isinstance(value, str):
            return _required_text(field, value)
        if self.kind.takes_pair and isinstance(value, dict):
            found = _object(field, value, "text", "text_pair")
            return {name: _required_text(f"{field}.{name}", found[name]) for name in found}
        pair = ' or {"text", "text_pair"}' if self.kind.takes_pair else ""
        chat = ' or a list of {"role", "content"}' if self.kind.takes_chat else ""
        raise RequestError(f"{field}: got {kind_of(value)}, allowed: a text{pair}{chat}")

    def _image(self, field: str, value: Any) -> Any:
        if isinstance(value, dict):
            value = _object(field, value, "image")["image"]
        return self.image(field, value)

    _audio = sound

    def _image_pair(self, field: str, value: Any) -> Any:
        if not isinstance(value, list) or len(value) != 2:
            raise RequestError(f"{field}: got {kind_of(value)}, allowed: a list of two images")
        return [self.image(field, one) for one in value]

    def _document(self, field: str, value: Any) -> Any:
        found = _object(field, value, "question", "image", "word_boxes")
        found["question"] = _required_text(f"{field}.question", found.get("question"))
        if "image" not in found and "word_boxes" not in found:
            raise RequestError(f"{field}: image is missing, with the question")
        if "image" in found:
            found["image"] = self.image(f"{field}.image", found["image"])
        return found

    def _detection(self, field: str, value: Any) -> Any:
        if not isinstance(value, dict):
            return {"image": self.image(field, value)}
        found = _object(field, value, "image", "candidate_labels")
        return {**found, "image": self.image(f"{field}.image", found.get("image", ""))}

    def _prompt(self, field: str, value: Any) -> Any:
        """A text, alone or with images: {"text", "images"}."""
        if isinstance(value, str):
            return _required_text(field, value)
        found = _object(field, value, "text", "image", "images")
        listed = found.get("images", found.get("image", []))
        words = _required_text(f"{field}.text", found.get("text"))
        images = listed if isinstance(listed, list) else [listed]
        if not images:
            return words
        return {"text": words, "images": [self.image(f"{field}.images", one) for one in images]}

    def _table(self, field: str, value: Any) -> Any:
        found = _object(field, value, "table", "query")
        if set(found) != {"table", "query"}:
            raise RequestError(f"{field}: table and query are both required")
        return found

    def _decision(self, field: str, value: Any) -> Any:
        """Refuses a text: the pipeline would parse it as JSON and open the addresses in it."""
        found = _object(field, value, "state", "questions", "assets")
        assets = found.get("assets", {})
        if not isinstance(assets, dict | None):
            got = f"{field}.assets: got {kind_of(assets)}"
            raise RequestError(f"{got}, allowed: a JSON object with names")
        images = {}
        for name, asset in (assets or {}).items():
            encoded = asset.get("data_base64") if isinstance(asset, dict) else asset
            images[name] = self.image(f"{field}.assets", encoded)
        return {**found, "assets": images} if assets else found

    def _message(self, field: str, message: Mapping[str, Any]) -> dict[str, Any]:
        content = message["content"]
        if self.kind.main != "prompt":
            return dict(message)  # rendered as a text; no address in it is opened
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list):
            raise RequestError(f"{field}: content: got {kind_of(content)}, allowed: a text or list")
        return {
            "role": message["role"],
            "content": [self._content_part(field, part) for part in content],
        }

    def _content_part(self, field: str, part: Any) -> dict[str, Any]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            return {"type": "text", "text": _required_text(f"{field}: text", part.get("text"))}
        if kind in ("image", "image_url"):
            given = (part[n] for n in ("image", "base64", "url", "image_url") if n in part)
            value = next(given, "")
            value = value.get("url", "") if isinstance(value, dict) else value
            return {"type": "image", "image": self.image(f"{field}: image", value)}
        if kind == "audio":
            value = part.get("audio", part.get("base64", part.get("url", "")))
            return {"type": "audio", "audio": self.sound(f"{field}: audio", value)}
        raise RequestError(f"{field}: a part's type must be one of text, image, audio")


def is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and {"role", "content"} <= set(m) for m in value)
    )


def _required_text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        got = "nothing" if value is None else kind_of(value)
        raise RequestError(f"{field}: got {got}, allowed: a text")
    if not value.strip():
        raise RequestError(f"{field}: empty, a text is required")
    return value


def _object(field: str, value: Any, *names: str) -> dict[str, Any]:
    """A copy of a JSON object that has these names alone."""
    if not isinstance(value, dict):
        allowed = f"a JSON object with {names[0]}"
        raise RequestError(f"{field}: got {kind_of(value)}, allowed: {allowed}")
    if not value or not set(value) <= set(names):
        raise RequestError(f"{field}: a JSON object here has only {', '.join(names)}")
    return dict(value)
