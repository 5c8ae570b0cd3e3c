"""The lines of tritonserver's output that reach the reader."""

from __future__ import annotations

import pytest

from hf_triton.tritonserver.log import LogFilter, plain
from hf_triton.tritonserver.triton_texts import Loads, one_line

SHOWN = [
    'I1120 11:04:48.919554 4596 model.py:6] "demo: loaded in 6.1 s"',
    'W1120 11:04:48.919554 4596 engine.py:60] "falls back"',
    'W1120 11:04:48.919554 4596 http_server.cc:60] "unknown"',
    'E1120 11:04:48.919554 4596 infer_request.cc:60] "refused"',
    "what a model prints",
    "/models/demo/1/model.py:7: UserWarning: careful",
    "tritonserver: error while loading shared libraries: libx.so: cannot open shared object file",
]
HIDDEN = [
    'I1120 11:04:47.477649 4596 cuda_memory_manager.cc:117] "CUDA memory pool disabled"',
    'W1120 11:04:47.4 4596 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory"',
    'E1120 11:04:47.477774 4596 server.cc:241] "CudaDriverHelper has not been initialized."',
    'W1120 11:04:53.965534 4596 metrics.cc:798] "DCGM unable to start: DCGM initialization error"',
    "Error: Failed to initialize NVML",
    "I1120 11:04:53.964140 4596 server.cc:604] ",
    "+------------------+------+",
    "| Repository Agent | Path |",
    "",
    "E1120 11:04:49.1 4596 model_lifecycle.cc:642] \"failed to load 'broken' version 1: Internal\"",
    'E1120 11:04:49.1 4596 backend_model.cc:692] "ERROR: Failed to create instance: x"',
    "Signal (15) received.",
]

NO_SUCH_GPU = (
    "Invalid argument: instance group demo_0 of model demo specifies invalid or unsupported gpu id"
)
USABLE_GPUS = "GPUs with at least the minimum required CUDA compute compatibility of 6.000000 are:"
ASKS_FOR, ADVICE = "instance_group asks for", "change gpus, or use KIND_CPU"


@pytest.mark.parametrize("line", SHOWN)
def test_what_models_and_warnings_say_is_shown(line: str) -> None:
    assert LogFilter().feed(line) == [line]


@pytest.mark.parametrize("line", HIDDEN)
def test_noise_is_not_shown(line: str) -> None:
    assert LogFilter().feed(line) == []


def test_an_import_error_is_hidden_with_all_its_lines_but_not_what_follows() -> None:
    log = LogFilter()
    traceback = [
        "I1120 11:08:13.9 8232 pb_stub.cc:298]  Failed to initialize Python stub: No module 'x'",
        "",
        "At:",
        "  /models/demo/1/model.py(1): <module>",
    ]
    assert not any(log.feed(line) for line in traceback)
    assert not log.feed('I1120 11:08:13.922659 8114 model_lifecycle.cc:777] "failed to load"')
    assert log.feed("another model prints") == ["another model prints"]


def test_an_abort_of_python_is_shown_but_for_one_as_its_process_ends() -> None:
    log, shown = LogFilter(), list[str]()
    abort = "Fatal Python error: PyGILState_Release: thread state must be current"
    end, begun = (f"Python runtime state: {state}" for state in ("finalizing (tstate=0)", "core"))
    for line in (abort, end, "", abort, begun, abort, abort):
        shown += log.feed(line)
    assert shown + log.end() == [abort, begun, abort, abort]
    assert list(log.tail) == [abort, begun, abort, abort]


def test_progress_bars_pass_now_and_then() -> None:
    now = [100]
    log = LogFilter(clock=lambda: now[0])
    bar = "Fetching 4 files:  25%|##        | 1/4 [00:10<00:30, 10.0s/it]"

    def is_shown_at(second: int) -> bool:
        now[0] = second
        return log.feed(bar) == [bar]

    assert [second for second in range(101, 126) if is_shown_at(second)] == [110, 120]


@pytest.mark.parametrize(
    "line",
    [
        "[OTLP HTTP Client] Session state: connection failed",
        "Transient error refused encountered while exporting spans batch, retrying in 1.02s.",
        "Failed to export spans batch code: None, reason: refused",
        "Queue full, dropping Span.",
    ],
)
def test_a_collector_that_is_away_is_told_of_once_a_minute(line: str) -> None:
    now = [100]
    log = LogFilter(clock=lambda: now[0])
    shown = []
    for now[0] in range(100, 280, 10):
        shown += log.feed(line)
    assert shown == [line] * 3


def test_the_tail_keeps_what_was_shown_and_the_hidden_errors() -> None:
    log = LogFilter()
    lines = [f"line {number}" for number in range(30)] + ["| table |", HIDDEN[9]]
    for line in lines:
        log.feed(line)
    assert list(log.tail)[-2:] == ["line 29", HIDDEN[9]]
    assert len(log.tail) == 20


@pytest.mark.threat("log-size")
def test_what_is_repeated_is_shown_a_few_times_and_counted() -> None:
    now = [0.0]
    log = LogFilter(clock=lambda: now[0])
    line = "[warn] Error from accept() call: Too many open files"
    shown = [text for _ in range(10_000) for text in log.feed(line)]
    assert shown == 20 * [line]
    assert log.feed("another line") == ["another line"]
    now[0] = 10.0
    left_out = f"hf-triton: left out 9,980 more lines like this: {line}"
    assert log.feed(line) == [left_out, line]
    assert log.end() == []


def test_lines_that_differ_in_digits_alone_are_repetitions() -> None:
    log = LogFilter()
    lines = [f'E1120 11:04:{n:02}.9 {n} x.cc:1] "request {n} failed"' for n in range(60)]
    assert [line for line in lines if log.feed(line)] == lines[:20]
    assert list(log.tail) == lines[:20]
    assert log.end() == ['hf-triton: left out 40 more lines like this: "request 0 failed"']


UNAVAILABLE = "load failed for model 'demo': version 1 is at UNAVAILABLE state: Internal: "
STEP_FAILED = (
    "load failed for model 'demo': ensemble 'demo' depends on 'demo_tokenizer' which has no loaded "
    "version. Model 'demo_tokenizer' loading failed with error: version 1 is at UNAVAILABLE state: "
)
NO_BACKEND = (
    "unable to find backend library for backend 'onnxruntime', try specifying runtime on the "
    "model configuration.;"
)


@pytest.mark.parametrize(
    "error, expected",
    [
        (
            f"{UNAVAILABLE}TritonModelException: org/name is gated\n\nAt:\n  /m.py(7): init\n;\n",
            "org/name is gated",
        ),
        (
            f"{UNAVAILABLE}ValueError: two\nlines\n\nAt:\n  /m.py(7): initialize\n;\n",
            "ValueError: two lines",
        ),
        (
            f"{UNAVAILABLE}Stub process 'demo_0_0' is not healthy.;\n",
            "its Python process died while loading (out of memory?)",
        ),
        (
            "failed to load 'demo', failed to poll from model repository",
            "its folder or config.pbtxt can't be read (see the log above)",
        ),
        (
            f"{STEP_FAILED}demo_tokenizer: org/name is gated\n\nAt:\n  /m.py(7): init\n;;",
            "demo_tokenizer: org/name is gated",
        ),
        (
            f"{STEP_FAILED}Invalid argument: {NO_BACKEND}",
            "this tritonserver has no backend 'onnxruntime'; NVIDIA's container has",
        ),
        (
            f"{NO_SUCH_GPU} 3. {USABLE_GPUS} 0,1,",
            f"{ASKS_FOR} GPU 3, and of the GPUs here Triton can use only 0,1: {ADVICE}",
        ),
        (
            f"{NO_SUCH_GPU} 0. {USABLE_GPUS} ",
            f"{ASKS_FOR} GPU 0, and Triton finds none here: {ADVICE}",
        ),
        (
            "instance group demo_0 of model demo has kind KIND_GPU but no GPUs are available",
            f"{ASKS_FOR} KIND_GPU, and Triton finds no GPU here: use KIND_CPU",
        ),
        ("", "no reason given"),
    ],
)
def test_a_load_error_becomes_one_line(error: str, expected: str) -> None:
    assert one_line(error) == expected


def test_colours_stay_out_of_the_log() -> None:
    line = "\x1b[1;31mERROR\x1b[0m: 5 \x1b[38;2;9;9;9mweights\x1b[K are [missing]"
    assert plain(line, []) == "ERROR: 5 weights are [missing]"


def test_loads_are_under_way_from_line_to_line_whatever_the_index_says() -> None:
    loads, said = Loads(), 'I1129 17:20:34.263174 29441 model_lifecycle.cc:{}] "{}"'
    for line in ("472,loading: m:1", "472,loading: m:12", "472,loading: other:1"):
        loads.follow(said.format(*line.split(",")))
    assert set(loads.under_way) == {("m", "1"), ("m", "12"), ("other", "1")}
    loads.follow(said.format(642, "failed to load 'm' version 1: Internal: Stub process"))
    loads.follow("what a model prints: successfully loaded 'm'")
    assert len(loads.under_way) == 3
    loads.follow(said.format(777, "failed to load 'm'"))
    assert set(loads.under_way) == {("other", "1")}
    loads.follow(said.format(839, "successfully loaded 'other'"))
    assert loads.under_way == {}
