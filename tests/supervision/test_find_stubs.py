"""Which processes of a group are models'."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from generator.server.stubs import Stub, find_stubs
from tests.support.triton import eventually

SERVER = "import subprocess, sys; subprocess.run(sys.argv[1:]); input()"
MODEL = "import os, time; os.fork(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(600)"


def test_what_a_stub_has_forked_is_no_stub_and_does_not_hide_its_death(tmp_path: Path) -> None:
    stub = tmp_path / "triton_python_backend_stub"
    stub.symlink_to(sys.executable)
    model_file = tmp_path / "a" / "1" / "model.py"
    model_file.parent.mkdir(parents=True)
    model_file.write_text(MODEL)
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(stub), str(model_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        try:
            assert server.stdout
            both = {int(server.stdout.readline()), int(server.stdout.readline())}
            [found] = find_stubs(server.pid)
            assert found == Stub("a", "1", found.pid)
            assert found.pid in both
            os.kill(found.pid, signal.SIGKILL)
            assert eventually(lambda: find_stubs(server.pid) == frozenset())
            [fork] = both - {found.pid}
            assert Path(f"/proc/{fork}").exists()
        finally:
            os.killpg(server.pid, signal.SIGKILL)
