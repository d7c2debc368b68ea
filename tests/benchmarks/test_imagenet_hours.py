"""Hours of ImageNet on GPUs: what is counted, and that the page has what the script prints."""

import dataclasses
import re
from pathlib import Path

import pytest

from benchmarks import imagenet

PAGE = Path(__file__).parents[2] / "docs" / "imagenet.md"
#: Million images: 90 epochs of 50 classes, and features of all, 1,281 images of a class and 50 at test.
DECODED = (90 * 50 * 1281 + 100 * (1281 + 50)) / 1e6
#: Some classes have 1,282.
NEARLY = 1e-3


@pytest.fixture(scope="module")
def measured():
    return imagenet.Rates.measured()


def test_a_training_takes_as_long_as_its_steps_or_its_decoding(measured):
    rates = dataclasses.replace(measured, steps=1000.0, decoded_by_core=50.0, features=400.0, cores=16)
    assert rates.training(8000, cores=16) == pytest.approx(10)
    assert rates.training(8000, cores=128) == pytest.approx(8)
    assert rates.extraction(8000, gpus=1) == pytest.approx(20)
    assert rates.extraction(8000, gpus=8) == pytest.approx(2.5)


def test_the_subset_by_hand(measured):
    name = "subset, `acil`, all K"
    found = imagenet.row(name, imagenet.ROWS[name], measured)
    assert found["decoded"] == pytest.approx(DECODED, rel=NEARLY)
    decoding = 1e6 * DECODED / (measured.decoded_by_core * measured.cores) / 3600
    assert decoding < found["one"] < 1.05 * decoding
    assert found["one"] / 8 < found["eight"] < found["one"]


@pytest.mark.slow
def test_the_page_has_what_the_script_prints(measured):
    part = re.search(r"<!-- generated: imagenet -->\n(.*?)\n<!-- end", PAGE.read_text(), re.DOTALL)[1]
    assert imagenet.text(measured) == part
