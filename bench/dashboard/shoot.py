"""Pictures of the dashboard in headless Chromium, and a check of what it shows against /stats.

    pip install playwright && apt-get install chromium
    python bench/dashboard/shoot.py --into bench/results

A daemon of its own is looked at idle and under load (more streams than its KV pool can hold, of four tenants), light
and dark, wide and narrow, and with a prompt in its box; then the page's words for what can go wrong. The pictures are
written when every figure that is looked at is the one of /stats, and the page has told of no error.
"""

import argparse
import asyncio
import contextlib
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))

from client import HttpClient, Job
from daemon import Daemon

VOCAB = 49152
WIDE, NARROW = {"width": 1280, "height": 1060}, {"width": 390, "height": 844}
TENANTS = {"search": 6, "support": 3, "batch": 2, "": 1}  # streams of each
FLAGS = (
    *(
        "--threads",
        "1",
        "--model",
        "smollm2-135m",
        "--http-port",
        "0",
        "--kv-cache-memory",
        "32MiB",
        "--swap-space",
        "0.03125",
    ),
    *("--preemption-mode", "swap", "--max-num-seqs", "16", "--scheduling-policy", "fair", "--max-model-len", "1024"),
    *(flag for name in TENANTS if name for flag in ("--tenant-weight", f"{name}=1")),
)
HISTORY_S = 40.0  # that the page itself has seen when its picture is taken
LOAD_S = 45.0  # before the pictures are taken: they show the last two minutes
PICTURE_BYTES_MAX = 200_000


class Load:
    """Closed loops of all tenants in a thread, from the construction to stop()."""

    def __init__(self, http):
        self._http = http
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def _run(self):
        streams = [(name, i) for name, count in TENANTS.items() for i in range(count)]
        await asyncio.gather(*(self._one(name, i) for name, i in streams))

    async def _one(self, tenant, number):
        fields = {"cache_salt": tenant} if tenant else {}
        client = HttpClient(self._http, VOCAB, f"{tenant}/{number}", **fields)
        index = 0
        while not self._ended.is_set():
            await client.run(index % 3, Job(0.0, 80 + 30 * number, 140), time.perf_counter())
            index += 1
        await client.close()

    def stop(self):
        self._ended.set()
        self._thread.join()


class Camera:
    """One page of one browser."""

    def __init__(self, browser, address, into, *, viewport=WIDE, scheme="light"):
        self._context = browser.new_context(viewport=viewport, color_scheme=scheme, device_scale_factor=1)
        self.page = self._context.new_page()
        self.errors = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self._into = into
        self._address = address

    def open(self):
        with self.page.expect_response("**/stats"):
            self.page.goto(f"http://{self._address}/")
        self.page.wait_for_timeout(300)

    def shoot(self, name):
        path = self._into / f"dashboard_{name}.png"
        self.page.screenshot(path=path, full_page=True)
        if shutil.which("pngquant"):
            subprocess.run(["pngquant", "--force", "--skip-if-larger", "--output", path, "128", path], check=False)
        assert path.stat().st_size < PICTURE_BYTES_MAX, f"{path} has {path.stat().st_size} bytes"
        print(path)

    def text(self, name):
        return self.page.locator(f"#{name}").inner_text()

    def close(self):
        self._context.close()


def whole(value):
    return f"{value:,}"


# All texts of one sample: the page may draw the next one at any moment.
TEXTS = """() => {
  const all = (selector) => [...document.querySelectorAll(selector)].map((each) => each.textContent);
  return {
    sample: document.body.dataset.sample, states: all("#states dt"), counts: all("#states dd"),
    blocks: all("#blocks-legend b"), queue: all("#queue")[0], speed: all("#speed")[0],
    tenants: all("#tenants tr").length,
  };
}"""


def shown_sample(camera):
    """What the page shows, and the answer that it drew."""
    for _ in range(20):
        with camera.page.expect_response("**/stats") as response:
            pass
        answer = response.value.json()
        for _ in range(50):
            texts = camera.page.evaluate(TEXTS)
            if texts["sample"] == str(answer["time"]):
                return texts, answer
            camera.page.wait_for_timeout(10)
    raise AssertionError("the page shows none of the answers that it gets")


def check_figures(camera):
    """The figures on the page are those of the answer that it drew."""
    texts, answer = shown_sample(camera)
    (model,) = answer["models"]
    expected = {name.capitalize(): whole(count) for name, count in model["sequences"].items()}
    shown = dict(zip(texts["states"], texts["counts"], strict=True))
    assert shown == {**expected, "Finished": whole(model["finished"])}, (shown, expected)
    blocks = model["blocks"]
    counts = [whole(blocks[name]) for name in ("held", "cached", "free", "swapped")]
    assert texts["blocks"] == counts, (texts, blocks)
    assert texts["queue"].startswith(whole(model["queue"]["waiting"])), (texts, model["queue"])
    rate, told = float(texts["speed"].split()[0].replace(",", "")), model["rates"]["generation_tokens_per_s"]
    assert abs(rate - told) <= max(0.06 * told, 0.1), (rate, told)
    assert texts["tenants"] == max(len(model["tenants"]), 1), (texts, model["tenants"])


def check_overflow(camera):
    """Nothing is wider than the window."""
    wide, window = camera.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window, f"the page is {wide} wide in a window of {window}"


def ask(camera):
    """A prompt through the page; its answer streams."""
    camera.page.fill("#prompt", "What is a page table in an operating system? Answer in two sentences.")
    camera.page.fill("#temperature", "0")
    camera.page.click("#send")
    expect(camera.page.locator("#told")).to_contain_text("ended by", timeout=120_000)
    assert len(camera.text("answer")) > 40
    print(camera.text("told"))
    camera.page.wait_for_timeout(HISTORY_S * 1e3)


def views(browser, daemon, into, name, act=None):
    """Wide and narrow, light and dark."""
    for size, viewport in (("wide", WIDE), ("narrow", NARROW)):
        for scheme in ("light", "dark"):
            camera = Camera(browser, daemon.http_target, into, viewport=viewport, scheme=scheme)
            camera.open()
            if act and size == "wide":
                act(camera)
            check_figures(camera)
            check_overflow(camera)
            assert not camera.errors, camera.errors
            camera.shoot(f"{name}_{size}_{scheme}")
            camera.close()


def answering(answer):
    """A handler that answers so, or not at all."""

    def handle(route):
        route.fulfill(**answer) if answer else route.abort()

    return handle


def troubles(browser, daemon, into):
    """What the page says when the server loads, drains, wants a key or is gone: answers made up here."""
    camera = Camera(browser, daemon.http_target, into)
    camera.open()
    stats = camera.page.evaluate("fetch('stats').then((answer) => answer.json())")
    cases = (
        ("draining", {"json": {**stats, "state": "draining"}}, "Draining"),
        ("loading", {"json": {**stats, "state": "starting", "models": []}}, "loading"),
        ("lost", None, "No answer"),
        ("key", {"status": 401, "json": {"error": {"message": "no key"}}}, "wants a key"),
    )
    for name, answer, words in cases:
        camera.page.unroute_all()
        camera.page.route("**/stats", answering(answer))
        expect(camera.page.locator("#banner")).to_contain_text(words, timeout=20_000)
        camera.page.wait_for_timeout(400)
        if name in ("lost", "key"):
            camera.shoot(name)
    camera.page.unroute_all()
    camera.page.fill("#key", "a key of the operator")
    camera.page.click("#key-form button[type=submit]")
    expect(camera.page.locator("#state")).to_have_text("serving")
    assert camera.page.locator("#banner").is_hidden()
    camera.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--load-s", type=float, default=LOAD_S, help="seconds of load before its pictures")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with Daemon(*FLAGS) as daemon, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        views(browser, daemon, options.into, "idle")
        with contextlib.closing(browser), contextlib.ExitStack() as stack:
            load = Load(daemon.http_target)
            stack.callback(load.stop)
            time.sleep(options.load_s)
            views(browser, daemon, options.into, "load", ask)
            troubles(browser, daemon, options.into)


if __name__ == "__main__":
    main()
