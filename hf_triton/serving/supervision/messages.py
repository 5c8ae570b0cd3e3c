"""What ``serve`` prints: curl lines, which are its result, on stdout; everything else on stderr."""

from __future__ import annotations

import contextlib
import sys

from generator.render import model_config
from generator.render.sample_requests import curl_lines
from hf_triton.serving.supervision.children import Children
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.tritonserver.process import TritonServer


def say(text: str) -> None:
    """One message, in one piece: others are written from other threads. Where nobody reads it, or
    the disk that it goes to is full, models are served on.
    """
    with contextlib.suppress(OSError):
        sys.stderr.write(f"hf-triton: {text}\n")
        sys.stderr.flush()


def print_curl_lines(server: TritonServer, model: str, children: Children) -> None:
    """Prints a request that works for each endpoint of a model."""
    config_file = server.repository / model / "config.pbtxt"
    if model_config.arm_of(config_file):
        return  # asked through the model whose arm it is
    access = children.access
    scheme = "https" if access.tls else "http"
    url = f"{scheme}://{server.listen.address(server.listen.http_port)}/v2/models"
    lines = curl_lines(server.repository, model, url, access.key_variable)
    if children.openai_api:
        lines += children.openai_api.curl_lines(model, config_file)
    with contextlib.suppress(OSError):
        print("\n".join([f"# {model}", *lines]), flush=True)


def tell_serving(
    server: TritonServer, served: ServedModels, num_ready: int, children: Children
) -> None:
    """Reports how many models are ready, and the server's addresses."""
    listen = server.listen
    scheme = "https" if children.access.tls else "http"
    where = f"{scheme} {listen.address(listen.http_port)}, grpc {listen.address(listen.grpc_port)}"
    if children.openai_api:
        url = children.openai_api.url
        where += f", OpenAI's API {url}/v1"
        where += f", playground {url}/playground" * children.openai_api.has_playground
    if listen.health_port:
        where += f", health http://{listen.address(listen.health_port)}/ready"
    hint = "" if children.openai_api else "; --openai-port adds OpenAI's API and a playground"
    num_models, num_on_demand = len(served.always()), len(served.on_demand())
    counts = []
    if num_models:
        counts.append(f"{num_ready} of {counted(num_models)}")
    if num_on_demand:
        counts.append(f"{num_on_demand if counts else counted(num_on_demand)} on demand")
    say(f"serving {' and '.join(counts)} on {where}; Ctrl-C stops{hint}")


def counted(num_models: int) -> str:
    """Such as ``2 models``."""
    return f"{num_models} model{'s' * (num_models != 1)}"
