"""The page of a server in a real browser."""

import shutil
from contextlib import ExitStack, contextmanager

import pytest

from acil.serve.settings import Settings
from support.serving import server

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip(
        "Chromium is not installed, so the page is not tested in a browser (apt-get install chromium).",
        allow_module_level=True,
    )
playwright = pytest.importorskip("playwright.sync_api")
# Five seconds are not enough on a machine that runs other tests too.
playwright.expect.set_options(timeout=20_000)

PHONE = {"width": 375, "height": 812}
DESKTOP = {"width": 1280, "height": 900}
#: What is wider than its place. What is one pixel large for screen readers may be.
WIDE = """() => [...document.querySelectorAll('main *, dialog *, header *')]
    .filter(e => e.offsetParent && !e.matches('.unseen, input'))
    .filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
    .map(e => e.id || e.className || e.tagName)"""


@contextmanager
def launched():
    """Run the browser."""
    with playwright.sync_playwright() as running:
        made = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@contextmanager
def pages(browser):
    """Yield a function that opens the page of a new server; scripts must not fail in it."""
    faults = []

    def opened(settings: Settings, viewport=DESKTOP, dark=False):
        service, address = stack.enter_context(server(settings))
        context = browser.new_context(viewport=viewport, color_scheme="dark" if dark else "light")
        page = stack.enter_context(context).new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console", lambda line: faults.append(line.text) if "Content Security" in line.text else 0
        )
        page.goto(address)
        page.service = service
        return page

    with ExitStack() as stack:
        yield opened
    assert faults == []


def says(page, what, text, milliseconds=None):
    """Wait until the status of a part of the page has this text."""
    playwright.expect(page.locator(f"#{what}-status")).to_contain_text(text, timeout=milliseconds)


def totals(page):
    """Return what the served model has learnt of each class."""
    published = page.service.store.published
    return None if published is None else published.snapshot.totals


def contrasts(page):
    """Return the contrast of text to ground (WCAG) of all elements with text of their own."""
    pairs = page.evaluate(
        """() => [...document.querySelectorAll('main *, header *, footer *')]
        .filter(e => e.offsetParent && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
        .map(e => {
          let ground = e;
          const clear = 'rgba(0, 0, 0, 0)';
          while (getComputedStyle(ground).backgroundColor === clear) ground = ground.parentElement;
          return [getComputedStyle(e).color, getComputedStyle(ground).backgroundColor];
        })"""
    )

    def luminance(colour):
        levels = [int(level) / 255 for level in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    found = []
    for pair in pairs:
        dark, light = sorted(map(luminance, pair))
        found.append((light + 0.05) / (dark + 0.05))
    assert len(found) > 20
    return found
