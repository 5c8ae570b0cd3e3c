"""The playground as somebody uses it, in Chromium, in front of a fake Triton."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from hf_triton.ports.retries import Model as Told
from hf_triton.tritonserver.model_state import State
from tests.support.triton import eventually
from tests.unit.openai_api.conftest import Starter, Translator

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(NAMES)} is on PATH")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """One that breaks no policy and no script."""
    complaints: list[str] = []
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text))
    yield page
    context.close()
    # An answer that is an error is a line of the console's too.
    assert [said for said in complaints if "Failed to load resource" not in said] == []


@pytest.fixture
def echo(page: Page, api: Translator) -> Page:
    page.goto(f"{api.url}/playground#echo")
    message(page).wait_for()
    return page


def message(page: Page) -> Any:
    return page.get_by_label("Message", exact=True)


def send(page: Page, text: str) -> None:
    message(page).fill(text)
    message(page).press("Enter")


def ask(page: Page, text: str) -> None:
    """Sends a message; returns once it is answered."""
    send(page, text)
    page.get_by_text("tokens, ").wait_for()


def turns(page: Page) -> list[str]:
    texts: list[str] = page.locator("#turns article").all_inner_texts()
    return texts


def copied(page: Page) -> str:
    page.evaluate("navigator.clipboard.writeText('')")
    page.locator("#copy").click()
    page.wait_for_function("() => navigator.clipboard.readText()")
    return str(page.evaluate("navigator.clipboard.readText()"))


def run(command: list[str], text: str) -> str:
    environment = {**os.environ, "HF_TRITON_KEY": "secret"}
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    return done.stdout


def test_a_text_grows_until_it_is_stopped_and_the_chat_goes_on(echo: Page, api: Translator) -> None:
    send(echo, "one two !waits")
    echo.get_by_role("button", name="Stop").wait_for()
    assert eventually(lambda: turns(echo) == ["one two !waits", "one two !waits"])
    assert api.triton.num_waiting == 1, "what has come is shown while the rest is awaited"
    message(echo).press("Escape")
    echo.get_by_text("Stopped.").first.wait_for()
    assert eventually(lambda: api.triton.left == ["one two !waits"])
    echo.get_by_label("System prompt").fill("Be kind.")
    message(echo).press_sequentially("x")
    message(echo).press("Shift+Enter")
    message(echo).press_sequentially("y")
    message(echo).press("Enter")
    echo.get_by_text("tokens, ").wait_for()
    sent = api.triton.seen[-1]["messages"]
    assert re.findall(r'"role": ?"(\w+)"', sent) == ["system", "user", "assistant", "user"]
    assert turns(echo)[-2:] == ["x\ny", "x\ny"]


def test_a_new_chat_knows_nothing_of_an_answer_that_it_ended(echo: Page, api: Translator) -> None:
    send(echo, "one !waits")
    assert eventually(lambda: api.triton.num_waiting == 1)
    echo.get_by_role("button", name="New chat").click()
    assert eventually(lambda: api.triton.left == ["one !waits"])
    ask(echo, "two")
    assert json.loads(api.triton.seen[-1]["messages"]) == [{"role": "user", "content": "two"}]
    assert turns(echo) == ["two", "two"]


def test_what_was_sent_works_as_pasted_in_a_shell_and_in_python(echo: Page) -> None:
    ask(echo, 'it\'s "a" $HOME `b` \\ é 😀')
    assert "it's" in run(["bash"], copied(echo))
    echo.get_by_role("radio", name="Python").check()
    assert run([sys.executable, "-"], copied(echo)) == 'it\'s "a" $HOME `b` \\ é 😀\n'


def test_an_error_stands_beside_its_field_and_the_text_is_kept(echo: Page) -> None:
    echo.get_by_label("Temperature").fill("hot")
    send(echo, "a b")
    wrong = echo.get_by_label("Temperature")
    echo.locator("#field-temperature-error:visible").wait_for()
    assert wrong.get_attribute("aria-describedby") == "field-temperature-error"
    assert wrong.get_attribute("aria-invalid") == "true"
    assert "got a text" in echo.locator("#field-temperature-error").inner_text()
    assert wrong.evaluate("field => field === document.activeElement")
    assert (message(echo).input_value(), turns(echo)) == ("a b", [])
    wrong.fill("0.5")
    send(echo, "!503")
    echo.get_by_role("alert").get_by_text("the queue is full").wait_for()


def test_a_model_without_a_chat_template_completes(echo: Page, api: Translator) -> None:
    send(echo, "!plain")
    echo.get_by_text("echo has no chat template").wait_for()
    box = echo.get_by_label("Text to go on with")
    assert box.input_value() == "!plain"
    box.fill("a b c")
    box.press("Enter")
    echo.get_by_text("tokens, ").wait_for()
    assert api.triton.seen[-1]["text_input"] == "a b c"


def test_a_form_is_filled_and_sent_by_keyboard_alone(page: Page, api: Translator) -> None:
    page.goto(f"{api.url}/playground")
    page.get_by_role("button", name="stranger").wait_for()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "stranger":
            break
    page.keyboard.press("Enter")
    page.get_by_label("Words").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.type("a\nb")
    page.keyboard.press("Tab")  # to what opens the other inputs
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("-1")
    page.keyboard.press("Enter")
    page.get_by_text("times: got -1, allowed: 0 or more").wait_for()
    page.keyboard.press("Control+A")
    page.keyboard.type("3")
    page.keyboard.press("Enter")
    page.locator("#answer").get_by_role("cell", name="b").wait_for()
    assert page.locator("#answer td").all_inner_texts() == ["a", "3", "b", "3"]
    assert api.triton.seen[-1] == {"words": ["a", "b"], "times": 3}
    assert json.loads(run(["bash"], copied(page)))["score"] == [0.5, None]
    page.get_by_role("radio", name="Python").check()
    assert "'score': [0.5, None]" in run([sys.executable, "-"], copied(page))


def test_a_model_is_shown_with_the_reason_and_opens_when_it_is_ready(
    page: Page, starter: Starter
) -> None:
    api = starter.api()
    whole = Told(state=State.FAILED, reason="no file config.json")
    api.tell(echo=Told(state=State.LOADING, reason="is being loaded"), whole=whole)
    page.goto(f"{api.url}/playground#echo")
    page.get_by_text("echo can't be asked now: is being loaded").wait_for()
    row = page.get_by_role("row").filter(has=page.get_by_role("button", name="whole"))
    assert "failed" in row.inner_text()
    assert page.locator("tr:visible.reason").all_inner_texts() == ["no file config.json"]
    api.tell(echo=Told(), whole=whole)
    message(page).wait_for()
    page.get_by_text("models are ready").wait_for()


@pytest.mark.threat("playground-scripts")
def test_a_key_is_asked_for_kept_for_the_tab_and_never_shown(page: Page, starter: Starter) -> None:
    api = starter.api(key="secret")
    page.goto(f"{api.url}/playground#echo")
    page.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("The server refuses this key").wait_for()
    page.get_by_label("API key").fill("secret")
    page.keyboard.press("Enter")
    ask(page, "a b")
    text = copied(page)
    assert "$HF_TRITON_KEY" in text
    assert "secret" not in text + page.content()
    assert "content" in run(["bash"], text)
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_is_wide_enough(scheme: Any, echo: Page) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core").Axe()
    echo.emulate_media(color_scheme=scheme)
    ask(echo, "a b")
    assert axe.run(echo).response["violations"] == []
    echo.set_viewport_size({"width": 360, "height": 740})
    echo.get_by_role("button", name="stranger").click()
    echo.get_by_label("Words").fill("a")
    echo.get_by_text("More inputs").click()
    echo.get_by_role("button", name="Send").click()
    echo.locator("#answer table").wait_for()
    assert axe.run(echo).response["violations"] == []
    assert echo.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.threat("playground-scripts")
def test_markup_of_a_model_is_text(echo: Page) -> None:
    text = "<img src=x onerror=alert(1)><b>bold</b>"
    ask(echo, text)
    assert turns(echo) == [text, text]
    echo.get_by_role("button", name="stranger").click()
    echo.get_by_label("Words").fill(text)
    echo.get_by_role("button", name="Send").click()
    echo.locator("#answer").get_by_role("cell", name=text).wait_for()
    assert echo.locator("main img").count() == 0


def test_what_the_models_do_is_shown_from_metrics(
    page: Page, starter: Starter, tmp_path: Path
) -> None:
    tokens = itertools.count(0, 1000)
    runner = starter.loop.run(serve_metrics(tmp_path / "metrics", tokens))
    api = starter.api(metrics_socket=str(tmp_path / "metrics"))
    page.goto(f"{api.url}/playground")
    row = page.get_by_role("row").filter(has=page.get_by_role("button", name="echo", exact=True))
    row.get_by_text(re.compile(r"[1-9]\d* tokens/s")).wait_for()
    assert row.locator("td").all_inner_texts()[1:3] == ["1", "cuda:0"]
    assert row.locator("td").last.inner_text().endswith("7 waiting · 3 of 8 slots")
    starter.loop.run(runner.cleanup())


async def serve_metrics(path: Path, tokens: Iterator[int]) -> web.AppRunner:
    """Triton's metrics of ``echo``, whose tokens grow with each look."""

    async def metrics(_request: web.Request) -> web.Response:
        labels = 'model="echo_stream",version="1"'
        values = {"waiting": 7, "kv_slots": 8, "kv_slots_used": 3}
        values["generated_tokens_total"] = next(tokens)
        lines = [f"hf_triton_{name}{{{labels}}} {value}" for name, value in values.items()]
        memory = f'hf_triton_memory_bytes{{device="cuda:0",kind="loaded",{labels}}} 5'
        gone = memory.replace("cuda:0", "cpu").replace('"1"} 5', '"0"} 0')
        return web.Response(text="\n".join([*lines, memory, gone, ""]))

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    return runner


def test_a_screen_reader_hears_sentences_once(echo: Page) -> None:
    spoken = "window.said = []; new MutationObserver(() => said.push(spoken.textContent))"
    echo.evaluate(f"{spoken}.observe(document.getElementById('spoken'), {{childList: true}})")
    ask(echo, "One sentence. " + "word " * 50)
    said = echo.evaluate("said")
    assert len(said) <= 2, "not with each token"
    assert "One sentence." in " ".join(said)
