"""The ports of one ``serve``: the process that listens on them, and what is printed of them. Curl
lines, which are the result of ``serve``, go to stdout; everything else to stderr.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from generator.render import model_config
from generator.render.sample_requests import curl_lines
from hf_triton.ports.openai.curl_lines import openai_curl_lines
from hf_triton.ports.settings import EVERYBODY, Access, OpenAiPort
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.tritonserver.child_process import ChildProcess
from hf_triton.tritonserver.log import say
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.restart_policy import times


@dataclass(frozen=True)
class PublicPorts:
    """``process`` listens while tritonserver starts, and answers that it does; ``access`` is what
    callers need.
    """

    process: ChildProcess
    openai: OpenAiPort | None = None
    access: Access = EVERYBODY

    def print_curl_lines(self, server: TritonServer, model: str) -> None:
        """Prints a request that works for each endpoint of a model."""
        config_file = server.repository / model / "config.pbtxt"
        if model_config.arm_of(config_file):
            return  # asked through the model whose arm it is
        listen, key = server.listen, self.access.key_variable
        url = f"{self._scheme}://{listen.address(listen.http_port)}/v2/models"
        lines = curl_lines(server.repository, model, url, key)
        if self.openai:
            url = f"{self._scheme}://{listen.address(self.openai.port)}"
            lines += openai_curl_lines(url, model, config_file, key)
        with contextlib.suppress(OSError):
            print("\n".join([f"# {model}", *lines]), flush=True)

    def tell_serving(self, server: TritonServer, served: ServedModels, num_ready: int) -> None:
        listen, openai = server.listen, self.openai
        grpc = listen.address(listen.grpc_port)
        where = f"{self._scheme} {listen.address(listen.http_port)}, grpc {grpc}"
        if openai:
            url = f"{self._scheme}://{listen.address(openai.port)}"
            where += f", OpenAI's API {url}/v1"
            where += f", playground {url}/playground" * openai.has_playground
        if listen.health_port:
            where += f", health http://{listen.address(listen.health_port)}/ready"
        hint = "" if openai else "; --openai-port adds OpenAI's API and a playground"
        num_models, num_on_demand = len(served.always()), len(served.on_demand())
        counts = []
        if num_models:
            counts.append(f"{num_ready} of {times(num_models, 'model')}")
        if num_on_demand:
            counts.append(f"{num_on_demand if counts else times(num_on_demand, 'model')} on demand")
        say(f"serving {' and '.join(counts)} on {where}; Ctrl-C stops{hint}")

    @property
    def _scheme(self) -> str:
        return "https" if self.access.tls else "http"
