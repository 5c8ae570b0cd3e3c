"""Answers with the text it was sent: a model that loads in a fraction of a second."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(__file__).parent
        if (folder / "environment.json").exists():
            self._load_in_environment(args["model_name"], folder)
        else:
            self._load()

    def _load_in_environment(self, name: str, folder: Path) -> None:
        """As the library's models do."""
        sys.path.insert(0, os.environ.get("HF_TRITON_LIBRARY", sys.prefix))
        from hf_triton.runtime import own_environment
        from hf_triton.runtime.errors import LoadError

        try:
            own_environment.check(folder)
            self._load()
        except LoadError as error:
            raise pb_utils.TritonModelException(f"{name}: {error}") from None
        except ModuleNotFoundError as error:
            reason = own_environment.lacks(folder, error)
            raise pb_utils.TritonModelException(f"{name}: {reason}") from None

    def _load(self) -> None:
        values = json.loads(Path(__file__).with_name("model.json").read_text())
        self.options: dict[str, Any] = values["options"]
        if self.options["die"]:
            os._exit(9)  # before it logs: dying with the log's lock held takes the server along
        pb_utils.Logger.log_info(f"loading {values['name']}")
        print(f"{values['name']} prints", flush=True)
        if self.options["needs"]:
            module = importlib.import_module(self.options["needs"])
            pb_utils.Logger.log_info(f"{module.__name__} {module.VERSION} of {sys.prefix}")
        self._wait(self.options["load_s"])
        file = self.options["load_until"]
        while file and not Path(file).exists():
            time.sleep(0.05)
        if self.options["fail"]:
            raise RuntimeError(self.options["fail"].replace(": ", ":\n"))

    def is_ready(self) -> bool:
        return bool(self.options["is_ready"])

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            threading.Thread(target=self._answer, args=(request,)).start()

    def _answer(self, request: Any) -> None:
        sender = request.get_response_sender()
        text = pb_utils.get_input_tensor_by_name(request, "text_input")
        assert text is not None
        self._wait(self.options["answer_s"])
        response = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text.as_numpy())])
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _wait(self, seconds: float) -> None:
        if seconds and self.options["hold_interpreter"]:
            re.match(r"(a+)+$", "a" * 40 + "b")  # exponential time in one C call
        time.sleep(seconds)
