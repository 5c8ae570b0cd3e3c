"""Hooks see and change every request and response; what goes wrong in one is its request's own."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np
import pytest

from hf_triton.hooks import HookRequest, HookResponse, observe
from hf_triton.runtime.errors import (
    CancelledError,
    HookError,
    LoadError,
    OverloadedError,
    RequestError,
)
from hf_triton.runtime.hooking import hook_runner
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.responder import Responder, status_and_text
from tests.support.intake_driver import Array, Caller, driving, strings
from tests.support.triton import eventually

HEAD = "from hf_triton.hooks import OverloadedError, RequestError, observe\nimport numpy as np\n"


def pre(*lines: str) -> str:
    return HEAD + "def preprocess(request):\n" + "".join(f"    {line}\n" for line in lines)


def post(*lines: str) -> str:
    return HEAD + "def postprocess(response):\n" + "".join(f"    {line}\n" for line in lines)


def error_of(caller: Caller) -> str:
    assert caller.error is not None, caller.responses
    return str(caller.error)


class Edited:
    """A model.py that a user edited."""

    def preprocess(self, request: HookRequest) -> None:
        if request.text("text_input") == "bad":
            raise KeyError
        request["text_input"] = request.text("text_input").upper()

    def postprocess(self, response: HookResponse) -> None:
        response["text_output"] = f"<{response.text('text_output')}>"


def test_methods_of_a_model_py_are_hooks(tmp_path: Path) -> None:
    with driving(tmp_path, model=Edited()) as driver:
        assert driver.ask("hello").text == "<HELLO>"
        error = error_of(driver.ask("bad"))
    assert re.fullmatch(r"test_hooks\.py:\d+: preprocess raised KeyError", error)


def test_hooks_are_in_one_of_two_places(tmp_path: Path) -> None:
    two = "hooks: model.py has preprocess and postprocess, and models.yaml names my_hooks.py: "
    with pytest.raises(LoadError, match=two), driving(tmp_path, pre("pass"), model=Edited()):
        pass


def test_what_can_not_be_called_is_no_hook(tmp_path: Path) -> None:
    class Plain:
        preprocess = None

    with driving(tmp_path, model=Plain()) as driver:
        assert driver.ask("hello").text == "hello"


@pytest.mark.parametrize(
    "line",
    [
        "request['text_input'] = request.text('text_input').upper()",
        "request['text_input'] = [request.text('text_input').upper()]",
        "request['text_input'] = np.array([b'HELLO'], dtype=object)",
        "request['text_input'] = np.array(['HELLO'])",
        "request['text_input'][0] = 'HELLO'",
        "return {'text_input': 'HELLO'}",
        "request.update(text_input=b'HELLO'); return request",
    ],
)
def test_a_preprocess_changes_a_tensor(line: str, tmp_path: Path) -> None:
    with driving(tmp_path, pre(line)) as driver:
        assert driver.ask("hello").text == "HELLO"
        (request,) = driver.taken
        assert request.inputs["text_input"].tolist() == [b"HELLO"]


def test_a_preprocess_sees_and_changes_parameters_and_other_tensors(tmp_path: Path) -> None:
    hooks = pre(
        "request['top_k'] = int(request['top_k'][0]) + request.parameters.pop('more')",
        "request['words'] = [*request.texts('words'), request.text('extra')]",
        "request.parameters['temperature'] = 0.5",
        "del request.parameters['extra']",
        "request['flag'] = True",
    )
    with driving(tmp_path, hooks) as driver:
        caller = driver.ask(
            "x",
            parameters={"more": 2, "extra": "c"},
            inputs={"top_k": np.array([3], dtype=np.int32), "words": strings("a", "b")},
        )
        assert caller.error is None
        (request,) = driver.taken
    assert request.parameters == {"temperature": 0.5}
    assert request.inputs["top_k"].tolist() == [5]
    assert request.inputs["top_k"].dtype == np.int32
    assert request.inputs["words"].tolist() == [b"a", b"b", b"c"]
    assert request.inputs["flag"].tolist() == [True]


def test_a_tensor_that_is_set_takes_the_place_of_a_parameter(tmp_path: Path) -> None:
    hooks = pre("if request.text('text_input') == 'x': request['top_k'] = 3")
    with driving(tmp_path, hooks) as driver:
        driver.ask("x", parameters={"top_k": 5})
        driver.ask("y", parameters={"text_input": "given twice"})
        assert [request.parameters for request in driver.taken] == [
            {},
            {"text_input": "given twice"},
        ]


def test_a_dict_replaces_all_tensors(tmp_path: Path) -> None:
    with driving(tmp_path, pre("return {'text_input': 'y'}")) as driver:
        driver.ask("x", inputs={"top_k": np.array([3], dtype=np.int32)})
    assert list(driver.taken[0].inputs) == ["text_input"]


def test_a_postprocess_changes_and_adds_outputs(tmp_path: Path) -> None:
    hooks = post(
        "response['text_output'] = response.text('text_output') + '!'",
        "response['label'] = 'good' if response['score'][0] > 0.4 else 'bad'",
        "response['score'] *= 2",
    )
    with driving(tmp_path, hooks) as driver:
        (answer,) = driver.ask("x").responses
    assert answer == {"text_output": [b"x!"], "score": [1.0], "label": [b"good"]}


def test_what_preprocess_keeps_postprocess_finds(tmp_path: Path) -> None:
    hooks = pre("request.state['n'] = len(request.text('text_input'))")
    hooks += (
        "def postprocess(response):\n    response['label'] = str(response.request.state['n'])\n"
    )
    with driving(tmp_path, hooks) as driver:
        (answer,) = driver.ask("four").responses
    assert answer["label"] == [b"4"]


def test_every_piece_of_a_stream_passes_postprocess_in_order(tmp_path: Path) -> None:
    hooks = post(
        "import time, random; time.sleep(random.random() / 200)",
        "end = '.' if response.is_final else ','",
        "response['text_output'] = response.text('text_output') + end",
    )

    def stream(request: Request) -> None:
        for number in range(20):
            request.responder.send({"text_output": strings(str(number))}, final=number == 19)

    with driving(tmp_path, hooks) as driver:
        driver.take = stream
        callers = [driver.start("x") for _ in range(10)]
        for caller in callers:
            pieces = [answer["text_output"][0].decode() for answer in caller.wait().responses]
            assert pieces == [*(f"{number}," for number in range(19)), "19."]


def test_batches_keep_their_rows(tmp_path: Path) -> None:
    hooks = pre("request['text_input'] = [t.upper() for t in request.texts('text_input')]")
    with driving(tmp_path, hooks, max_batch_size=8) as driver:
        caller = driver.ask(strings("a", "b", "c").reshape(3, 1))
    assert caller.responses[0]["text_output"] == [[b"A"], [b"B"], [b"C"]]


@pytest.mark.parametrize(
    "line, message",
    [
        ("request['text'] = 'x'", "input 'text' is not declared; this model has text_input, words"),
        ("request['text_input'] = ['a', 'b']", "'text_input': got 2 values, allowed: shape [1]"),
        ("request['text_input'] = 3", "'text_input': got int, allowed: a text or a list of texts"),
        ("request['text_input'] = [3]", "'text_input': got int in it, allowed: texts"),
        ("request['text_input'][0] = 3", "'text_input': got int in it, allowed: texts"),
        ("request['top_k'] = 'three'", "'top_k': got str, allowed: int32"),
        ("request['top_k'] = 0.5", "'top_k': got float64, allowed: int32"),
        ("request['top_k'] = 2**31", "'top_k': got a number that int32 can't hold"),
        ("request['top_k'] = True", "'top_k': got bool, allowed: int32"),
        ("request['text_input'] = np.array([['a']])", "got shape [1, 1], allowed: [1]"),
        ("request.parameters['x'] = [1]", "parameter 'x': got list, allowed: a text, a number"),
        ("return 'x'", "returned str, allowed: None or a dict of tensors"),
        ("return {'text': 'x'}", "input 'text' is not declared"),
        ("observe('lenght', 1)", "metric 'lenght' is not declared; metrics: has none"),
        ("response['other'] = 'x'", "output 'other' is not declared; this model has text_output"),
        ("response['score'] = 'high'", "output 'score': got str, allowed: float32"),
        ("response['score'] = np.zeros((2, 2))", "output 'score': got shape [2, 2], allowed: [-1]"),
        ("response.text('label')", "output 'label' is missing"),
    ],
)
def test_what_a_model_cannot_take_or_send_is_an_error_of_the_hook(
    line: str, message: str, tmp_path: Path
) -> None:
    is_post = line.startswith("response")
    with driving(tmp_path, post(line) if is_post else pre(line)) as driver:
        caller = driver.ask("x")
    assert isinstance(caller.error, HookError)
    assert status_and_text(caller.error)[0] == "INTERNAL"
    name = "postprocess" if is_post else "preprocess"
    assert re.match(rf"my_hooks\.py(:4)?: {name}: .*", error_of(caller))
    assert message in error_of(caller)
    assert not caller.responses
    assert bool(driver.taken) is is_post


def test_outputs_keep_a_shape_that_is_not_the_declared_one(tmp_path: Path) -> None:
    def answer(request: Request) -> None:
        request.responder.send({"score": np.ones((2, 3), dtype=np.float32)}, final=True)

    with driving(tmp_path, post("response['score'] = response['score'][:, :2] * 2")) as driver:
        driver.take = answer
        assert driver.ask().responses == [{"score": [[2.0, 2.0], [2.0, 2.0]]}]


@pytest.mark.threat("texts-in-logs")
@pytest.mark.parametrize(
    "raising, name",
    [
        ("{}['secret text']", "KeyError"),
        ("raise SystemExit('secret text')", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("assert False, 'secret text'", "AssertionError"),
        ("f = lambda: f()\n    f()", "RecursionError"),
    ],
)
def test_an_exception_is_its_requests_own_error_and_its_text_stays_out_of_the_log(
    raising: str, name: str, tmp_path: Path, log_lines: list[str]
) -> None:
    hooks = pre("if request.text('text_input') != 'bad': return", raising)
    with driving(tmp_path, hooks) as driver:
        texts = ("good", "bad", "good", "bad")
        callers = [driver.start(text, request_id="r-7") for text in texts]
        answers = [caller.wait() for caller in callers]
    assert [answer.error is None for answer in answers] == [True, False, True, False]
    for answer in answers[1::2]:
        assert isinstance(answer.error, HookError)
        assert error_of(answer).startswith("my_hooks.py:5") or name == "RecursionError"
        assert error_of(answer).endswith(f"preprocess raised {name}")
        assert "secret" not in error_of(answer)
    assert len(log_lines) == 2
    assert all(f"[request id: r-7] {error_of(answers[1])}" in line for line in log_lines)
    assert "secret" not in "".join(log_lines)


def test_a_stream_ends_where_postprocess_raises_and_its_engine_is_told(tmp_path: Path) -> None:
    senders: list[Responder] = []

    def stream(request: Request) -> None:
        senders.append(request.responder)
        for number in range(5):
            request.responder.send({"text_output": strings(str(number))}, final=False)

    with driving(tmp_path, post("assert response.text('text_output') != '2'")) as driver:
        driver.take = stream
        caller = driver.ask()
        assert [answer["text_output"] for answer in caller.responses] == [[b"0"], [b"1"]]
        assert isinstance(caller.error, HookError)
        assert senders[0].is_cancelled()
        senders[0].fail(CancelledError("what engines answer then"))


def test_a_hook_may_answer_with_an_error_of_its_own_words(
    tmp_path: Path, log_lines: list[str]
) -> None:
    hooks = pre(
        "text = request.text('text_input')",
        "if text == 'busy': raise OverloadedError('the lookup is busy')",
        "if text == 'bad': raise RequestError(f'text_input: {text} is not allowed')",
    )
    with driving(tmp_path, hooks) as driver:
        bad, busy = driver.ask("bad").error, driver.ask("busy").error
    assert isinstance(bad, RequestError)
    assert status_and_text(bad) == ("INVALID_ARG", "text_input: bad is not allowed")
    assert isinstance(busy, OverloadedError)
    assert not log_lines


@pytest.mark.parametrize(
    "array, message",
    [
        (np.array([b"\xff"], dtype=np.object_), "text_input: not valid UTF-8 at byte 0"),
        (np.array([], dtype=np.object_), "text_input: missing, a text is required"),
    ],
)
def test_a_text_that_is_none_is_its_callers_mistake(
    array: Array, message: str, tmp_path: Path
) -> None:
    with driving(tmp_path, pre("request.text('text_input')")) as driver:
        error = driver.ask(array).error
    assert isinstance(error, RequestError)
    assert str(error) == message


def test_errors_of_the_task_pass_by_postprocess(tmp_path: Path) -> None:
    def fail(request: Request) -> None:
        request.responder.fail(RequestError("top_k: got 0"))

    with driving(tmp_path, post("1 / 0")) as driver:
        driver.take = fail
        assert error_of(driver.ask()) == "top_k: got 0"


def test_a_task_that_raises_still_answers(tmp_path: Path, log_lines: list[str]) -> None:
    def fail(request: Request) -> None:
        raise ValueError("secret text")

    with driving(tmp_path, pre("pass")) as driver:
        driver.take = fail
        assert str(driver.ask(request_id="r-7").error) == "internal error: ValueError"
    assert log_lines[0].startswith("E [request id: r-7] a request failed: ValueError at ")
    assert "secret" not in log_lines[0]


def test_a_slow_hook_holds_up_nobody(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    hooks = pre(
        "import os, time",
        f"while request.text('text_input') == 'slow' and not os.path.exists({str(gate)!r}):",
        "    time.sleep(0.01)",
    )
    with driving(tmp_path, hooks) as driver:
        slow = driver.start("slow")
        quick = driver.ask("quick")
        assert quick.text == "quick"
        assert not slow.done.is_set()
        gate.touch()
        assert slow.wait().text == "slow"


@pytest.mark.threat("too-many-requests")
def test_more_requests_than_may_wait_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_runner, "MAX_WAITING", 10)
    gate = tmp_path / "gate"
    hooks = pre("import os, time", f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)")
    with driving(tmp_path, hooks) as driver:
        callers = [driver.start(str(number)) for number in range(15)]
        refused = [caller for caller in callers if caller.done.is_set()]
        gate.touch()
        answers = [caller.wait() for caller in callers]
    assert len(refused) == 5
    assert all(isinstance(caller.error, OverloadedError) for caller in refused)
    assert sum(answer.error is None for answer in answers) == 10


def test_a_hook_that_never_returns_ends_with_the_model(tmp_path: Path) -> None:
    release = threading.Event()
    hooks = pre("import builtins", "builtins.release_of_test.wait(60)")
    import builtins

    builtins.release_of_test = release  # type: ignore[attr-defined]
    with driving(tmp_path, hooks) as driver:
        callers = [driver.start("x") for _ in range(12)]
        driver.intake.drain(0.2)
        for caller in callers:
            assert isinstance(caller.wait().error, OverloadedError)
        assert isinstance(driver.ask("late").error, OverloadedError)
        release.set()
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name == "preprocess"])
    assert not driver.taken


def test_responses_in_hand_are_sent_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_triton.runtime.engine.intake.CLOSE_S", 60.0)
    with driving(tmp_path, post("import time; time.sleep(0.3)")) as driver:
        caller = driver.start("x")
    assert caller.text == "x"


@pytest.mark.parametrize(
    "hooks, message",
    [
        ("import no_such_module\n", "my_hooks.py:1: ModuleNotFoundError: No module named"),
        ("x = 1\n\nx.y\n", "hooks: my_hooks.py:3: AttributeError: 'int' object has no"),
        ("x = 1\n  y = 2\n", "hooks: my_hooks.py:2: IndentationError: unexpected indent"),
        ("raise SystemExit(3)\n", "hooks: my_hooks.py:1: SystemExit: 3"),
        ("from hf_triton.hooks import observe\nobserve('a')\n", "my_hooks.py:2: HookError: obs"),
        ("def preprocess(request): pass\ndel preprocess\n", "my_hooks.py has neither preprocess"),
    ],
)
def test_a_file_that_cannot_be_loaded_says_why_in_one_line(
    hooks: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError) as caught, driving(tmp_path, hooks):
        pass
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hooks_file_may_define_dataclasses_and_keep_state(tmp_path: Path) -> None:
    hooks = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Seen:\n    number: int = 0\n\n\nseen = Seen()\n\n\n"
        "def preprocess(request):\n    seen.number += 1\n"
        "    request['text_input'] = str(seen.number)\n"
    )
    with driving(tmp_path, hooks) as driver:
        assert [driver.ask("x").text for _ in range(3)] == ["1", "2", "3"]


def test_a_request_is_like_a_dict() -> None:
    request = HookRequest({"a": strings("x")}, {}, None, parameters={"b": "y"}, outputs=())
    assert ("a" in request, "b" in request, len(request)) == (True, False, 1)
    assert (request.text("a"), request.text("b"), request.text("c", "z")) == ("x", "y", "z")


def test_observe_outside_of_a_hook_says_so() -> None:
    with pytest.raises(HookError, match="outside of preprocess and postprocess"):
        observe("anything")
