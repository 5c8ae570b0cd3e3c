"""Sample inputs by task, for the curl lines that `serve` prints and for the request that a load
tries. Standard library only.
"""

from __future__ import annotations

import base64
import io
import wave

Value = str | int | bool | list[str] | list[int] | list[bool]

SAMPLE_TEXT = "I am going"
SAMPLE_MASK = "[MASK]"  # stands for the tokenizer's own word for it
_MASKED = f"She drinks a cup of {SAMPLE_MASK}."
_LABELS = ["sport", "food", "weather"]
_PICTURE = (  # a red PNG of 32 x 32 pixels
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAKklEQVR42mO4IydHU8QwasGoBaMWjFowasGoBaMW"
    "jFowasGoBaMWDBULAJI2YD30P/0LAAAAAElFTkSuQmCC"
)


def sound(num_samples: int = 400) -> str:
    """A WAV of silence in base64, of a twentieth of a second: 8,000 samples a second, of 8 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((1, 1, 8000, 0, "NONE", ""))
        written.writeframes(b"\x80" * num_samples)
    return base64.b64encode(file.getvalue()).decode()


_FILES = {"image": _PICTURE, "audio": sound()}
_BY_TASK: dict[str, dict[str, Value]] = {
    "text-generation": {"text_input": SAMPLE_TEXT},
    "feature-extraction": {"text_input": "A dog sleeps under a tree."},
    "text-classification": {"text_input": "I love this film."},
    "token-classification": {"text_input": "My name is Anna Brown and I live in Paris."},
    "question-answering": {
        "question": "Where does Anna live?",
        "context": "Anna lives in Paris. Tom lives in Rome.",
    },
    "fill-mask": {"text_input": _MASKED},
    "zero-shot-classification": {
        "text_input": "Our team won the match.",
        "candidate_labels": _LABELS,
    },
    "text2text-generation": {"text_input": "The small dog sleeps in the garden."},
    "automatic-speech-recognition": {"audio": _FILES["audio"]},
    "image-text-to-text": {"text_input": "What is this?", "image": _PICTURE},
    "audio-text-to-text": {"text_input": "What do you hear?", "audio": _FILES["audio"]},
}


def sample_values(task: str, pipeline: str, first_input: str) -> dict[str, Value] | None:
    """A value for each input that a request needs; None for a user's task."""
    if task != "pipeline":
        return _BY_TASK.get(task)
    if pipeline == "document-question-answering":
        return {"image": _PICTURE, "question": "What colour is it?"}
    text = _MASKED if pipeline == "fill-mask" else SAMPLE_TEXT
    found: dict[str, Value] = {first_input: _FILES.get(first_input, text)}
    if "zero-shot" in pipeline:
        found["candidate_labels"] = ["red", "blue"] if first_input == "image" else _LABELS
    return found
