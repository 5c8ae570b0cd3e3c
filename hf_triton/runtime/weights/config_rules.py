"""What a model's JSON may not say where only models.yaml is trusted: numbers that would fill memory
before anything else could refuse them, names of code on the Hub, and paths out of the folder.

Knows keys, in whatever file and nested configuration they stand; reads no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from .hub_files import is_safe_path

_DEEPEST = 64
_FREE = 2**200
# Keys, the most that their whole numbers may be, and what is large for them; the first that fits
# counts. The most is far above what models have: layers reach some 200, vocabularies a million.
_MOST: tuple[tuple[str, int, int], ...] = (
    (r"(^|_)(layers?|blocks?|depths?|stages)$", 10_000, 100),
    (r"^num_labels$|(^|_)extra_ids$|^offset$", 2**20, 1000),
    (r"^size$|(^|_)(image_size|img_size|crop_size|pad_size|height|width|edge)$", 8192, 1000),
    (r"pixels$", 2**27, 2**24),
    (r"^(sampling_rate|n_fft|fft_length|win_length|frame_length)$", 2**18, 2**16),
    (r"^(feature_size|num_mel_bins|num_mel_filters)$", 2**14, 128),
    (r"^chunk_length", 600, 30),
    (r"^r$", 2**16, 256),
    # These allocate nothing by themselves; declared_size.py counts tables that some models make.
    (
        r"length|max_len|position|seq|window|context|theta|seed|params|tokens$|value|freq|time",
        _FREE,
        200_000,
    ),
    (r"vocab", 2**25, 200_000),
    (r"", 2**25, 10_000),
)
# Edges of these image processors of transformers are areas.
_BY_AREA = re.compile(
    r"CohereCompass|Cosmos|Emu|Ernie4_5|Glm|HunYuan|Lfm2|MiniMax|Muse|PaddleOCR|Qwen|VideoLlama"
)
_MOST_AREA = 2**27
_PATHS = ("configuration_files", "fast_tokenizer_files", "transformers_weights", "class_info_file")
_IMPLEMENTATION = re.compile(r"(attn|experts)_implementation$")
# What is in transformers itself. Any other name is one of a repository of code.
_BUILT_IN = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
# transformers loads code from the Hub for them where their package is not installed.
FROM_PACKAGES = ("flash_attention_2", "flash_attention_3", "flash_attention_4")


def mistakes(found: Any, *, trusts_code: bool) -> Iterator[str]:
    """What is wrong with the content of a file of JSON, each as ``KEY: got X, allowed: Y``."""
    for names, value, by_area in _values(found, (), by_area=False):
        where, key = ".".join(names), names[-1] if names else ""
        if type(value) is int:
            most = _MOST_AREA if by_area and key.endswith("edge") else _limits(key)[0]
            if value > most:
                yield f"{where}: got {_shown(value)}, allowed: at most {most}"
        elif isinstance(value, str):
            allowed = _allowed(names, value, trusts_code=trusts_code)
            if allowed is not None:
                yield f"{where}: got {_shown(value)}, allowed: {allowed}"


def largest_number(found: Any) -> str | None:
    """The number that is the largest for its key, as ``KEY is X``; None where there is none."""
    told = [
        (value / _limits(names[-1])[1], f"{'.'.join(names)} is {_shown(value)}")
        for names, value, _ in _values(found, (), by_area=False)
        if names and type(value) is int and value > 0
    ]
    return max(told, default=(0.0, None))[1]


@cache
def _limits(key: str) -> tuple[int, int]:
    return next((most, large) for pattern, most, large in _MOST if re.search(pattern, key))


def _values(
    found: Any, names: tuple[str, ...], *, by_area: bool
) -> Iterator[tuple[tuple[str, ...], Any, bool]]:
    """Each value with the names that lead to it; what lists hold has the names of the list.

    Raises:
        ValueError: it is nested too deeply.
    """
    if len(names) > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} deep")
    if isinstance(found, dict):
        kind = found.get("image_processor_type") or found.get("video_processor_type")
        by_area = by_area or bool(_BY_AREA.match(str(kind)))
        for name, value in found.items():
            yield from _values(value, (*names, name), by_area=by_area)
    elif isinstance(found, list):
        for value in found:
            yield from _values(value, names, by_area=by_area)
    else:
        yield names, found, by_area


def _allowed(names: tuple[str, ...], value: str, *, trusts_code: bool) -> str | None:
    """What is allowed in the place of a text; None where it is allowed."""
    if names[:1] == ("weight_map",) or (names and names[-1] in _PATHS):
        return None if is_safe_path(value) else "a path within the model's folder"
    if trusts_code:
        return None
    if any(map(_IMPLEMENTATION.search, names)) and value not in (*_BUILT_IN, *FROM_PACKAGES):
        return f"{', '.join(_BUILT_IN)}; others run code of the Hub (trust_remote_code)"
    if names and names[-1] == "audio_tokenizer_name_or_path":
        return "none; it loads another model of the Hub (trust_remote_code)"
    return None


def _shown(value: int | str) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
