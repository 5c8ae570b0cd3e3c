"""Measures this machine in a process of its own, which takes torch and its memory away with it.

``python -m perf.roofline.apart`` prints the figures of ``Run.roofline`` as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

_TIMEOUT_S = 300.0
_ROOT = Path(__file__).parents[2]


class NotMeasuredError(Exception):
    """Why there are no figures, in one line."""


def figures() -> dict[str, float]:
    """Of this machine, in 10 to 20 seconds. Raises NotMeasuredError."""
    if importlib.util.find_spec("torch") is None:
        raise NotMeasuredError("torch is not installed here (pip install 'hf-triton[serve]')")
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        found: dict[str, float] = json.loads(done.stdout)
    except (OSError, ValueError) as error:
        raise NotMeasuredError(str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise NotMeasuredError(f"not done after {_TIMEOUT_S:.0f} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        raise NotMeasuredError(lines[-1] if lines else f"exit code {error.returncode}") from error
    return found


if __name__ == "__main__":
    from perf.roofline.measured import measure

    print(json.dumps(measure().as_figures()))
