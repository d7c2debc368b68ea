"""The page of an evaluation: whole in one file, for its owner, and harmless whatever names say."""

import base64
import hashlib
import re
import stat
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy.stats import norm

from acil import ACILClassifier, ImageClassifier
from acil.growing.report import render
from acil.growing.results import Evaluation, Prediction
from acil.growing.snapshot import Snapshot, Tracker
from support.commands import acil
from support.pictures import draw, network

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}"
#: Of the page beside its samples, in characters: style, text, charts of 200 classes.
MOST_FRAME = 600_000


class Page(HTMLParser):
    """Collects tags and their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def evaluated(n_classes, per_class, n_strange=0, shown=None, flips=0, names="class {:03d}"):
    """Return the evaluation of a model of generated rows, and the names of rows with a wrong label."""
    generator = np.random.default_rng(0)
    classes = np.array([names.format(c) for c in range(n_classes)])
    centres = 2 * generator.normal(size=(n_classes, 32))
    y = np.arange(n_classes).repeat(per_class)
    X, X_test = (centres[y] + 1.4 * generator.normal(size=(len(y), 32)) for _ in range(2))
    head = ACILClassifier(expansion_size=None, scores="discriminant").partial_fit(X, classes[y])
    given = classes[y]
    flipped = generator.choice(len(y), flips, replace=False)
    given[flipped] = classes[
        (y[flipped] + 1 + generator.integers(n_classes - 1, size=flips)) % n_classes
    ]
    given = [*given.tolist(), *["strange"] * n_strange]
    X_test = np.concatenate([X_test, 6 * generator.normal(size=(n_strange, 32))])
    images = [f"row {i}" for i in range(len(X_test))]
    state = Snapshot.of(head, Tracker(), None)
    predictions = state.classify(X_test, images, 3, 1.0, given)
    found = Evaluation.of(list(state.totals), given, predictions, 1.0, shown)
    return found, {images[i] for i in flipped}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    draw(folder / "train", 5)
    draw(folder / "test", 3, seed=1)
    (folder / "test" / "white" / "1-0.png").rename(folder / "test" / "blue" / "white.png")
    draw(folder / "test", 2, names=("red",), seed=2)
    (folder / "test" / "red").rename(folder / "test" / "pink")
    return folder


def test_report_of_images_shows_them_in_one_private_file(place, tmp_path):
    model = ImageClassifier(network())
    model.learn(place / "train")
    page = tmp_path / "report.html"
    page.write_text("old")
    page.chmod(0o644)
    found = model.evaluate(place / "test")
    found.to_html(page, "m.acil")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    read = Page(page.read_text(encoding="utf-8"))
    assert not {"script", "link", "iframe", "object", "embed"} & {tag for tag, _ in read.tags}
    addresses = [a.get("src") or a.get("href") for _, a in read.tags if "src" in a or "href" in a]
    assert all(address.startswith(("data:image/jpeg;base64,", "#")) for address in addresses)
    assert not [a for _, a in read.tags if "style" in a or any(name.startswith("on") for name in a)]
    pictures = {image["src"] for image in read.all("img")}
    # All of them: those of learnt classes are doubtful, if nothing else.
    assert len(pictures) == found.images == 9
    text = page.read_text(encoding="utf-8")
    assert text.index("This file contains samples") < text.index("<h1>")
    assert f"{len(pictures)} pictures" in text
    assert "5 samples of 1 class not learnt" in " ".join(text.split())
    assert "taken for" in text


def test_policy_allows_the_style_of_the_page_and_nothing_else():
    read = Page(page := render(evaluated(3, 5)[0]))
    (policy,) = [m["content"] for m in read.all("meta") if "http-equiv" in m]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )


@pytest.mark.parametrize("n_classes", [3, 30])
def test_no_name_or_text_becomes_part_of_the_page(n_classes):
    names = HOSTILE.replace("{", "{{").replace("}", "}}") + "{:03d}"
    found, _ = evaluated(n_classes, 6, 3, lambda name: HOSTILE, flips=4, names=names)
    for pairs in (found.wrong, found.right, found.strange):
        for _, prediction in pairs:
            object.__setattr__(prediction, "image", HOSTILE + prediction.image)
    plain = Page(render(evaluated(n_classes, 6, 3, lambda name: "text", flips=4)[0], "m"))
    page = render(found, HOSTILE)
    hostile = Page(page)
    assert [tag for tag, _ in plain.tags] == [tag for tag, _ in hostile.tags]
    assert [set(a) for _, a in plain.tags] == [set(a) for _, a in hostile.tags]
    assert "alert(1)" in page
    assert "{{7*7}}" in page


def test_report_of_many_classes_is_bounded_and_names_them_all():
    found, _ = evaluated(200, 8, 50, lambda name: b"x" * 3000, flips=60)
    page = render(found)
    read = Page(page)
    # Pairs and their examples, doubtful and mislabelled samples
    assert len(read.all("img")) <= 12 * 8 + 24 + 36
    assert len(page) - sum(len(image["src"]) for image in read.all("img")) <= MOST_FRAME
    assert all(f">{name}<" in page for name in found.classes)
    assert "classes not learnt" in page


def test_long_texts_are_cut_wherever_they_stand():
    found, _ = evaluated(30, 20, shown=lambda name: name, flips=60)
    for pairs in (found.wrong, found.right):
        for _, prediction in pairs:
            object.__setattr__(prediction, "image", prediction.image + " word" * 2_000)
    page = render(found)
    assert "word word…" in page
    assert "word" * 100 not in page.replace(" ", "")
    assert len(page) < 300_000


def test_flipped_labels_come_first_among_the_wrong():
    found, flipped = evaluated(30, 100, flips=60)
    first = [prediction.image for _, prediction in found.wrong[: found.images * 4 // 100]]
    assert len(flipped & {*first}) >= 0.7 * len(flipped)
    assert found.accuracy > 90


def test_interval_is_that_of_wilson():
    found, _ = evaluated(4, 25, flips=5)
    n, p, z = found.images, found.accuracy / 100, norm.ppf(0.975)
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    np.testing.assert_allclose(found.interval, (100 * (centre - half), 100 * (centre + half)))
    assert found.to_dict()["interval"] == found.interval


def test_report_without_errors_novelty_or_pictures():
    top = (("a", 0.9), ("b", 0.1))
    predictions = [Prediction(f"{i}.png", "a", False, top, None, given=0.9) for i in range(3)]
    found = Evaluation.of(["a", "b"], ["a"] * 3, predictions, None, lambda name: None)
    page = render(found)
    assert "100.0&nbsp;%" in page
    assert "Most often confused" not in page
    assert "called unknown" not in page
    one = Evaluation.of(["a"], ["a"], [Prediction("x", "a", False, (("a", 1.0),), 0.1, given=1.0)])
    assert "1 sample" in render(one)


def test_command_writes_the_report_and_replaces_nothing(place, tmp_path):
    rows = ["a,b,label", *(f"{i % 2 + i / 100},{i / 50},{'xy'[i % 2]}" for i in range(40))]
    table, model, page = tmp_path / "t.csv", tmp_path / "m.acil", tmp_path / "r.html"
    table.write_text("\n".join(rows))
    acil("learn", table, "--model", model)
    done = acil("evaluate", model, table, "--report", page)
    assert "contains samples" in done.stderr
    assert "95 % interval" in done.stdout
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "How m.acil does" in page.read_text()
    assert "--force" in acil("evaluate", model, table, "--report", page, code=1).stderr
    assert ".html" in acil("evaluate", model, table, "--report", tmp_path / "r.txt", code=2).stderr
