"""Ends the children of a process that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PARENT = """\
import signal, subprocess, sys
from functools import partial
from perf.processes import end_with_parent
command = [sys.executable, "-c", "input()"]
end = partial(end_with_parent, signal.SIGKILL)
subprocess.Popen(command, preexec_fn=end, start_new_session=True)
print("up", flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_what_a_killed_process_started_ends_with_it() -> None:
    root = str(Path(__file__).parents[3])
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, "PYTHONPATH": root},
        stdin=reading,
        stdout=subprocess.PIPE,
    ) as parent:
        os.close(reading)
        assert parent.stdout
        assert parent.stdout.readline() == b"up\n"
        parent.send_signal(signal.SIGKILL)
        # The child has the same standard output, which ends when it does; its input never does.
        assert parent.stdout.read() == b""
    os.close(writing)
