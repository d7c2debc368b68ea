"""Make the pictures of the page that the README and docs/serving.md show.

    python docs/images/screenshots.py [--out FOLDER] [--photos PHOTOS]

Draws the shapes of the tutorial, learns three of them, serves the model, teaches the fourth in a
headless Chromium (which has to be installed) and writes serve-desktop.png and serve-phone.png into
FOLDER, by default beside this file. So it does with sentences for serve-texts.png. With PHOTOS, which
holds train and test with a folder of photographs for each class of `KNOWN`, `TAUGHT` and `STRANGE`, it
writes serve-photos.jpg: one photograph that is known, one that is not, and one corrected by a click. Run
it after every change of the page, and look at what it has written.
"""

import argparse
import io
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
ACIL = (sys.executable, "-m", "acil")
DESKTOP = {"viewport": {"width": 1120, "height": 900}, "color_scheme": "light"}
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
SHOWN = ("star", "circle", "triangle")
#: Photographs: classes learnt before, with so many images each, the one taught on the page, and another.
KNOWN = ("cassette_player", "church", "english_springer", "french_horn", "garbage_truck", "parachute")
PHOTOGRAPHS = 10
TAUGHT, STRANGE = "golf_ball", "chain_saw"
#: Of the test photographs, one for each case, chosen by eye: right, wrong, and unlike all classes. They
#: are not among those on which accuracy is measured.
ASKED = ("english_springer/02.jpg", "cassette_player/05.jpg", "chain_saw/08.jpg")
SENTENCES = {
    "card": (
        "my card was swallowed by the machine",
        "the cash machine kept my bank card",
        "my debit card does not work abroad",
        "please block my credit card, it was stolen",
        "why was my card declined at the shop?",
        "I need a new card, mine is broken",
    ),
    "travel": (
        "my flight is delayed, can I rebook?",
        "book a hotel near the airport for two nights",
        "which train goes to the city tomorrow morning",
        "I lost my luggage at the airport",
        "how much is a ticket to Lisbon",
        "can I change the seat on my flight",
    ),
    "weather": (
        "will it rain tomorrow?",
        "how cold does it get tonight",
        "is there snow in the mountains",
        "what is the forecast for the weekend",
        "do I need an umbrella today",
        "how windy is it at the coast",
    ),
}
QUESTIONS = (
    "the machine at the station took my card",
    "is there a storm coming?",
    "my train was cancelled because of snow",
)
#: A palette of this many colours keeps the files small and shows no difference.
COLOURS = 128
QUALITY = 88
#: Pixels below what is shown.
MARGIN = 16
WAIT_MILLISECONDS = 60_000


@contextmanager
def served(folder, model, *options):
    """Serve a model; yield the address of the page."""
    command = [*ACIL, "serve", model, "--port", "0", *options]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        yield re.search(r"http://\S+", process.stdout.readline()).group()
    finally:
        process.terminate()
        process.wait()


def says(page, what, text):
    """Wait until the status of a part of the page has this text."""
    expect(page.locator(f"#{what}-status")).to_contain_text(text, timeout=WAIT_MILLISECONDS)


def settled(page):
    """Wait for all pictures; no field is being filled in or pointed at."""
    page.mouse.move(0, 0)
    page.evaluate("() => document.activeElement.blur()")
    page.wait_for_function("() => [...document.images].every((image) => image.complete)")


def teach(page, name, images):
    """Teach the images of a class."""
    page.get_by_label("Name of the class").fill(name)
    page.set_input_files("#teach-files", images)
    page.get_by_role("button", name="Teach", exact=True).click()
    says(page, "teach", f"Learnt {len(images)} images")


def shapes(folder, page, address):
    """Teach the star and ask for three images."""
    page.goto(address)
    teach(page, "star", sorted((folder / "shapes/new/star").iterdir()))
    page.set_input_files("#predict-files", [folder / f"shapes/test/{n}/{n}00.png" for n in SHOWN])
    says(page, "predict", "3 answers")


def photographs(photos, page, address):
    """Teach a class, ask for three photographs, and correct the wrong answer."""
    page.goto(address)
    teach(page, TAUGHT.replace("_", " "), sorted((photos / "train" / TAUGHT).iterdir())[:PHOTOGRAPHS])
    page.set_input_files("#predict-files", [photos / "test" / name for name in ASKED])
    says(page, "predict", "3 answers")
    wrong = page.locator(".answer").nth(1)
    right = Path(ASKED[1]).parent.name.replace("_", " ")
    wrong.get_by_role("button", name=right, exact=True).click()
    expect(wrong.locator(".status")).to_contain_text("Learnt as", timeout=WAIT_MILLISECONDS)


def texts(page, address):
    """Teach three classes by their sentences, and ask for three others."""
    page.goto(address)
    for name, lines in SENTENCES.items():
        page.get_by_label("Name of the class").fill(name)
        page.get_by_label("Its texts").fill("\n".join(lines))
        page.get_by_role("button", name="Teach", exact=True).click()
        says(page, "teach", f"Learnt {len(lines)} texts of “{name}”")
    page.get_by_label("One text, or many").fill("\n".join(QUESTIONS))
    page.get_by_role("button", name="Ask").click()
    says(page, "predict", "3 answers")


def copied(photos, folder):
    """Give the photographs that are learnt and measured to folders with names for people."""
    for part, names, number in (("train", KNOWN, PHOTOGRAPHS), ("test", (*KNOWN, TAUGHT), None)):
        for name in names:
            place = folder / part / name.replace("_", " ")
            place.mkdir(parents=True)
            for path in sorted((photos / part / name).iterdir())[:number]:
                if part == "train" or f"{name}/{path.name}" not in ASKED:
                    shutil.copy(path, place)


def picture(page, path):
    """Write a picture of the page, down to the end of the answers."""
    settled(page)
    box = page.locator("#predict").bounding_box()
    width, height = page.viewport_size["width"], box["y"] + box["height"] + MARGIN
    clip = {"x": 0, "y": 0, "width": width, "height": height}
    with Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip))) as shown:
        small = shown.convert("RGB")
    if path.suffix == ".jpg":
        small.save(path, quality=QUALITY, optimize=True, progressive=True)
    else:
        small.quantize(COLOURS).save(path, optimize=True)


def main(target, photos):
    """Write all pictures into a folder."""
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if chromium is None:
        sys.exit("Chromium is not installed (apt-get install chromium).")
    with sync_playwright() as running, tempfile.TemporaryDirectory() as place:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        folder = Path(place)

        def opened(view):
            return browser.new_context(**view).new_page()

        runpy.run_path(str(HERE.parents[1] / "examples" / "shapes.py"))["main"](folder / "shapes")
        for name, view in (("desktop", DESKTOP), ("phone", PHONE)):
            command = [*ACIL, "learn", "shapes/train", "--model", f"{name}/shapes.acil"]
            (folder / name).mkdir()
            subprocess.run(command, cwd=folder, check=True)
            with served(folder, f"{name}/shapes.acil", "--held-out", "shapes/test") as address:
                page = opened(view)
                shapes(folder, page, address)
                picture(page, target / f"serve-{name}.png")
        with served(folder, "desk.acil", "--texts") as address:
            page = opened(DESKTOP)
            texts(page, address)
            picture(page, target / "serve-texts.png")
        if photos is not None:
            copied(photos, folder)
            subprocess.run([*ACIL, "learn", "train", "--model", "photos.acil"], cwd=folder, check=True)
            with served(folder, "photos.acil", "--held-out", "test", "--no-token") as address:
                page = opened(DESKTOP)
                photographs(photos, page, address)
                picture(page, target / "serve-photos.jpg")
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the pictures")
    parser.add_argument("--photos", type=Path, help="folder of train and test photographs")
    given = parser.parse_args()
    main(given.out, given.photos)
