"""The axis "prompts": how long prompts take to be read, and what their length does to each token
that follows. One request at a time.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import time
from collections.abc import Iterator

from generator.server.process import TritonServer
from generator.spec.triton_models import engine_name
from perf.growth.axes.axis import Axis, Chart, Cost, Measure, Place, Step, doubled
from perf.growth.axes.llama import Shape, repository_of
from perf.growth.axes.server import asked, served
from perf.load.requests import prompt
from perf.load.targets import ANY_STREAM
from perf.usage import cpu_seconds, peak_memory

NUM_OUTPUT_TOKENS = 33  # of the longer answers; the others have 1
LONGEST = 2048
_NUM_ASKED = 5
_MODEL = "llama"


@contextlib.contextmanager
def session(place: Place) -> Iterator[Measure]:
    """One server, warm."""
    place.say("making the model")
    shape = Shape(LONGEST + NUM_OUTPUT_TOKENS, max_num_seqs=8, streaming=True)
    repository = repository_of(place.folder, [_MODEL], shape, place.seed)
    place.say("starting the server")
    with served(repository, [engine_name(_MODEL)]) as server:
        draw = random.Random(place.seed)
        _ask(server, draw, 64, NUM_OUTPUT_TOKENS)
        yield lambda step: [_cost(server, draw, step)]


def _cost(server: TritonServer, draw: random.Random, step: Step) -> Cost:
    before_s, begin = cpu_seconds(server.pid), time.perf_counter()
    with peak_memory(server.pid) as peak:
        alone = _ask(server, draw, step.value, 1)
        prefill_cpu_s = (cpu_seconds(server.pid) - before_s) / _NUM_ASKED
        longer = _ask(server, draw, step.value, NUM_OUTPUT_TOKENS)
    per_token = [(last_s - first_s) / (NUM_OUTPUT_TOKENS - 1) for first_s, last_s in longer]
    figures = {
        "prefill_s": statistics.median(first_s for first_s, _ in alone),
        "prefill_cpu_s": prefill_cpu_s,
        "decode_s_per_token": statistics.median(per_token),
        "peak_memory_mib": peak.gib * 1024,
    }
    return Cost("in-flight engine", figures, time.perf_counter() - begin, 2 * _NUM_ASKED)


def _ask(
    server: TritonServer, draw: random.Random, length: int, max_tokens: int
) -> list[tuple[float, float]]:
    """When the first and the last piece of each answer came."""
    prompts = [prompt(draw, length) for _ in range(_NUM_ASKED)]
    more = {"max_tokens": max_tokens, "stream": True}
    bodies = [json.dumps({"text_input": text, **more}) for text in prompts]
    records = asked(server, ANY_STREAM, engine_name(_MODEL), bodies)
    return [(r.chunk_s[0] - r.sent_s, r.chunk_s[-1] - r.sent_s) for r in records]


AXIS = Axis(
    name="prompts",
    title="Tokens of a prompt",
    unit="tokens",
    points=doubled(16, LONGEST),
    quick_points=(16, 128, 512, 1024, LONGEST),
    highest=LONGEST,
    targets=("in-flight engine",),
    charts=(
        Chart("Until the first token", ("prefill_s", "prefill_cpu_s")),
        Chart("For each further token", ("decode_s_per_token",)),
        Chart("The server's memory", ("peak_memory_mib",)),
    ),
    session=session,
    note=f"The 42 M Llama with a context of {LONGEST + NUM_OUTPUT_TOKENS} tokens, one request at a "
    f"time, streamed: the median of {_NUM_ASKED} that ask for 1 token, and of {_NUM_ASKED} that "
    f"ask for {NUM_OUTPUT_TOKENS}.",
    memory_gib=lambda _: 2.5,
)
