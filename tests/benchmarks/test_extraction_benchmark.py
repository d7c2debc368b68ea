"""The benchmark of extraction compares passes that follow one another, and says which."""

import pytest
import torch

from acil.encoders.images import build
from acil.encoders.images.embedder import TorchEmbedder
from benchmarks import extraction


@pytest.fixture
def sides():
    network = build("smallcnn").eval()
    embedder = TorchEmbedder(network)
    side = network.preprocessing.size
    channels = len(network.preprocessing.mean)
    return network, embedder, torch.zeros(6, channels, side, side, dtype=torch.uint8)


def test_every_batch_size_is_measured_and_all_images_at_once(sides):
    ours, *rows = extraction.compared(*sides, rounds=2)
    assert ours["what"] == "ours"
    assert [row["what"] for row in rows] == [f"eager, batches of {size}" for size in (1, 4, 6)]
    for row in rows:
        assert row["images_a_second"] > 0
        assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"]


def test_the_ratio_is_the_median_over_neighbouring_passes(sides, monkeypatch):
    # One batch size; eager and ours in turns. The machine is half as fast in the second round.
    monkeypatch.setattr(extraction, "BATCHES", ())
    passes = iter([10.0, 40.0, 5.0, 20.0, 10.0, 50.0])
    monkeypatch.setattr(extraction, "rate", lambda action, images: next(passes))
    ours, row = extraction.compared(*sides, rounds=3)
    assert ours["images_a_second"] == 40
    assert row["images_a_second"] == 10
    assert (row["ratio"], row["ratio_min"], row["ratio_max"]) == (4, 4, 5)
