"""What to send to a model to try it out, by its task: values of its inputs, the same for the curl
lines that `serve` prints and for the request that a load tries. Standard library only.
"""

from __future__ import annotations

import base64
import struct
import zlib

Value = str | int | bool | list[str] | list[int] | list[bool]

SAMPLE_TEXT = "I am going"
SAMPLE_MASK = "[MASK]"  # stands for the tokenizer's own word for it
_MASKED = f"She drinks a cup of {SAMPLE_MASK}."
_LABELS = ["sport", "food", "weather"]
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
}


def sample_values(task: str, pipeline: str, first_input: str) -> dict[str, Value] | None:
    """A value for each input that a request needs; None for a user's task."""
    if task == "pipeline":
        return _pipeline_values(pipeline, first_input)
    if task == "automatic-speech-recognition":
        return {"audio": sound()}
    if task in SAMPLE_FILES:
        name, file, question = SAMPLE_FILES[task]
        return {"text_input": question, name: file()}
    return _BY_TASK.get(task)


def _pipeline_values(name: str, first_input: str) -> dict[str, Value]:
    if name == "document-question-answering":
        return {"image": picture(), "question": "What colour is it?"}
    files = {"image": picture, "audio": sound}
    text = _MASKED if name == "fill-mask" else SAMPLE_TEXT
    found: dict[str, Value] = {first_input: files[first_input]() if first_input in files else text}
    if "zero-shot" in name:
        found["candidate_labels"] = ["red", "blue"] if first_input == "image" else _LABELS
    return found


def picture() -> str:
    """A red PNG of 32 x 32 pixels in base64."""
    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)  # 8 bits of red, green and blue
    pixels = zlib.compress((b"\0" + b"\xdc\x1e\x1e" * 32) * 32, 9)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    packed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(packed)).decode()


def sound(num_samples: int = 400) -> str:
    """A WAV of silence in base64, of a twentieth of a second: 8,000 samples a second, of 8 bits."""
    samples = b"\x80" * num_samples
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(samples)) + samples
    return base64.b64encode(struct.pack("<4sI", b"RIFF", len(body)) + body).decode()


SAMPLE_FILES = {
    "image-text-to-text": ("image", picture, "What is this?"),
    "audio-text-to-text": ("audio", sound, "What do you hear?"),
}
