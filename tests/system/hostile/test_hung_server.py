"""``hf-triton serve`` with a tritonserver that falls silent; a program only seems to be one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.served import Served, serve
from tests.support.triton import eventually, get

TRITONSERVER = f"""#!{sys.executable}
import json, os, socketserver, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

flags = dict(argument[2:].partition("=")[::2] for argument in sys.argv[1:])
hang = os.environ["HANG"]
if os.path.exists(hang):
    os.remove(hang)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        while os.path.exists(hang):
            time.sleep(1)
        body = b"[]"
        if self.path.endswith("/index"):
            versions = [{{"name": "plain", "version": "1", "state": "READY"}}]
            body = json.dumps(versions).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *args):
        pass

    def address_string(self):
        return ""


address = flags["http-address"]
if address.startswith("unix:"):
    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    Server(address[5:], Handler).serve_forever()
ThreadingHTTPServer((address, int(flags["http-port"])), Handler).serve_forever()
"""


def status(served: Served) -> int:
    return get(f"http://127.0.0.1:{served.listen.health_port}/ready").status


@pytest.mark.threat("hanging-processes")
def test_a_server_that_falls_silent_is_told_of_and_replaced_within_seconds(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text(TRITONSERVER)
    program.chmod(0o755)
    hang = tmp_path / "hang"
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HANG": str(hang)}
    with serve(tmp_path, "- name: plain\n", environment=environment) as served:
        served.wait_for("Ctrl-C stops")
        assert eventually(lambda: status(served) == 200)
        hang.touch()
        assert eventually(lambda: status(served) == 503, 20)
        served.wait_for("s and is killed")
        assert "tritonserver has not answered for" in served.err
        assert eventually(lambda: status(served) == 200), served.err
