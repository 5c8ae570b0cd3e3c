"""Converts a pipeline's results to JSON: arrays to lists, images to PNG and sounds to WAV data:
URLs. NaN and infinities become null.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np


def to_json(result: Any) -> str:
    """One line of JSON; raises TypeError for types without a JSON form."""
    return json.dumps(_plain(result), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """Converts ``value`` to JSON's own types."""
    if value is None or (isinstance(value, bool | str | int) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, Mapping):
        return _plain_object(value)
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    return _plain_other(value)


def _plain_object(value: Mapping[Any, Any]) -> dict[str, Any]:
    if value.get("type") in ("image", "audio") and len(value) == 2:
        return {"type": value["type"]}  # the chat's input, which pipelines repeat beside the answer
    if set(value) == {"audio", "sampling_rate"} and not isinstance(value["audio"], str):
        rate = int(value["sampling_rate"])
        return {"audio": _wav(value["audio"], rate), "sampling_rate": rate}
    return {str(key): _plain(one) for key, one in value.items()}


def _plain_other(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        return _plain((value.float() if value.is_floating_point() else value).numpy())
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if hasattr(value, "save") and hasattr(value, "convert"):  # a PIL image
        return _png(value)
    if hasattr(value, "messages"):  # transformers' Chat
        return _plain(value.messages)
    raise TypeError(f"the pipeline answered a {type(value).__name__}, which has no form in JSON")


def _png(picture: Any) -> str:
    packed = io.BytesIO()
    picture.save(packed, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(packed.getvalue()).decode()}"


def _wav(samples: Any, rate: int) -> str:
    """16-bit samples of (num_samples,) or (channels, num_samples)."""
    import soundfile

    array = samples.detach().cpu().float().numpy() if hasattr(samples, "detach") else samples
    array = np.atleast_2d(np.asarray(array, dtype=np.float32))
    packed = io.BytesIO()
    frames = array.reshape(-1, array.shape[-1]).T
    soundfile.write(packed, np.clip(frames, -1, 1), rate, format="WAV", subtype="PCM_16")
    return f"data:audio/wav;base64,{base64.b64encode(packed.getvalue()).decode()}"
