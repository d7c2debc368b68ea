"""The 8 x 8 handwritten digits that ship with scikit-learn: small, always there, no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from acil.bench.datasets import Dataset
from acil.encoders.images.imageset import ImageSet

#: The test images are one of this many, class by class.
_TEST_SHARE = 3
_SPLIT_SEED = 0
#: Brightest value of the original images.
_BRIGHTEST = 16


def load(root: Path | None = None) -> Dataset:
    """Return the digits with a fixed split: a third of each class is for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images * (255 / _BRIGHTEST)).astype(np.uint8).reshape(-1, 1, 8, 8)
    # The legacy generator, because NumPy has frozen its stream: the split must never change.
    generator = np.random.RandomState(_SPLIT_SEED)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        test[generator.permutation(members)[: len(members) // _TEST_SHARE]] = True
    return Dataset(
        name="digits",
        train=ImageSet(torch.from_numpy(pixels[~test])),
        train_labels=torch.from_numpy(labels[~test].astype(np.int64)),
        test=ImageSet(torch.from_numpy(pixels[test])),
        test_labels=torch.from_numpy(labels[test].astype(np.int64)),
        class_names=tuple(str(digit) for digit in range(10)),
        default_recipe="digits",
        default_base=5,
    )
