"""The confusion matrix of `acil evaluate --plot`: an image of bounded size that can be read."""

import tracemalloc

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from acil.cli.predict import _draw
from acil.growing import Evaluation


def evaluation(n, names="class {:04d}", wrong=()):
    """Return that of ten images of each of n classes, of which some pairs are confused so often."""
    confusion = 10 * np.eye(n, dtype=np.int64)
    for i, j, times in wrong:
        confusion[i, j] += times
        confusion[i, i] -= times
    classes = tuple(names.format(i) for i in range(n))
    return Evaluation(classes, confusion, {}, {}, 0, (), (), ())


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Return a function that draws, and returns the size in pixels and the texts of the image."""
    figures, savefig = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: figures.append(self) or savefig(self, *a, **k)
    )

    def draw(found):
        _draw(found, tmp_path / "plot.png")
        with Image.open(tmp_path / "plot.png") as image:
            size = image.size
        return size, [text.get_text() for text in figures[-1].findobj(Text)]

    return draw


@pytest.mark.parametrize("n", [1, 3, 25, 26, 199, 1000])
def test_image_and_number_of_names_are_bounded_for_any_number_of_classes(n, drawn):
    found = evaluation(n)
    (width, height), texts = drawn(found)
    assert width <= 2250
    assert height <= 1650
    named = {text for text in texts if text in found.classes}
    assert named == {*found.classes} if n <= 80 else 40 <= len(named) <= 80
    assert len(texts) < 25**2 + 200


@pytest.mark.slow
def test_drawing_takes_no_memory_that_grows_with_the_matrix(drawn):
    found = evaluation(4000)
    drawn(evaluation(2))  # what is loaded once does not count
    tracemalloc.start()
    drawn(found)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 250e6 < 2 * found.confusion.nbytes


def test_few_classes_have_numbers_in_their_cells(drawn):
    _, texts = drawn(evaluation(3, wrong=[(0, 2, 4)]))
    assert " 60 0 40 0 100 0 0 0 100 " in f" {' '.join(texts)} "


def test_of_many_classes_the_pairs_most_often_confused_are_listed(drawn):
    wrong = [(i, i + 1, 1) for i in range(60)] + [(70, 3, 6), (190, 80, 2)]
    _, texts = drawn(evaluation(199, wrong=wrong))
    (listed,) = (text for text in texts if "→" in text)
    lines = listed.splitlines()
    assert lines[2:4] == ["6 of 10   class 0070 → class 0003", "2 of 10   class 0190 → class 0080"]
    assert lines[-1] == "… and 17 more pairs"


def test_rare_confusions_stay_visible_where_a_cell_stands_for_several_classes(monkeypatch, drawn):
    shown = []
    monkeypatch.setattr("matplotlib.axes.Axes.imshow", spy(shown))
    _, texts = drawn(evaluation(1300, wrong=[(7, 1000, 3)]))
    (shares,) = shown
    assert shares.shape == (434, 434)
    assert shares[7 // 3, 1000 // 3] == 30
    assert np.count_nonzero(shares) == 435
    assert any("3 x 3 classes" in text for text in texts)


def spy(shown):
    from matplotlib.axes import Axes

    imshow = Axes.imshow
    return lambda self, values, **options: shown.append(values) or imshow(self, values, **options)


def test_long_names_and_signs_of_formulas_do_not_change_the_layout(drawn):
    size, texts = drawn(evaluation(3, names="$x^{{{}}}$ " + "long " * 30))
    assert size == drawn(evaluation(3))[0]
    assert any(text.startswith("$x^{2}$ long") and len(text) == 24 for text in texts)
