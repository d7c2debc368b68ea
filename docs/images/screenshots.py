"""Make the pictures of the page that docs/serving.md shows.

    python docs/images/screenshots.py [FOLDER]

Draws the shapes of the tutorial, learns three of them, serves the model, teaches the fourth in a
headless Chromium (which has to be installed) and writes serve-desktop.png and serve-phone.png into
FOLDER, by default beside this file. Run it after every change of the page, and look at what it has
written.
"""

import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect, sync_playwright

HERE = Path(__file__).parent
SHAPES = HERE.parents[1] / "examples" / "shapes.py"
VIEWS = {
    "serve-desktop": {"viewport": {"width": 1120, "height": 900}, "color_scheme": "light"},
    "serve-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
SHOWN = ("star", "circle", "triangle")
#: A palette of this many colours keeps the files small and shows no difference.
COLOURS = 128
WAIT_MILLISECONDS = 60_000


@contextmanager
def served(folder):
    """Learn the shapes but the star, and serve the model; yield the address of the page."""
    acil = [sys.executable, "-m", "acil"]
    subprocess.run([*acil, "learn", "shapes/train", "--model", "shapes.acil"], cwd=folder, check=True)
    command = [*acil, "serve", "shapes.acil", "--held-out", "shapes/test", "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        yield re.search(r"http://\S+", process.stdout.readline()).group()
    finally:
        process.terminate()
        process.wait()


def fill(page, folder):
    """Teach the star and ask for three images."""
    page.get_by_label("Name of the class").fill("star")
    page.set_input_files("#teach-files", sorted((folder / "shapes/new/star").iterdir()))
    page.get_by_role("button", name="Teach", exact=True).click()
    expect(page.locator("#teach-status")).to_contain_text("Learnt 20 images", timeout=WAIT_MILLISECONDS)
    images = [folder / f"shapes/test/{name}/{name}00.png" for name in SHOWN]
    page.set_input_files("#predict-files", images)
    expect(page.locator("#predict-status")).to_contain_text("3 answers", timeout=WAIT_MILLISECONDS)
    # No field is being filled in or pointed at, and all pictures are there.
    page.mouse.move(0, 0)
    page.evaluate("() => document.activeElement.blur()")
    page.wait_for_function("() => [...document.images].every((image) => image.complete)")


def main(target):
    """Write one picture for each view."""
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser is None:
        sys.exit("Chromium is not installed (apt-get install chromium).")
    draw = runpy.run_path(str(SHAPES))["main"]
    for name, view in VIEWS.items():
        with tempfile.TemporaryDirectory() as place, sync_playwright() as running:
            folder = Path(place)
            draw(folder / "shapes")
            with served(folder) as address:
                opened = running.chromium.launch(executable_path=browser, args=["--no-sandbox"])
                page = opened.new_context(**view).new_page()
                page.goto(address)
                fill(page, folder)
                path = target / f"{name}.png"
                page.screenshot(path=path, full_page=True)
                opened.close()
            with Image.open(path) as picture:
                small = picture.convert("RGB").quantize(COLOURS)
            small.save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
