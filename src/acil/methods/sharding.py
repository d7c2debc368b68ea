"""Which images of a phase or a test set a process works on, when several do a job together.

Image number i of a split belongs to rank i modulo the number of processes, in every phase: each process
extracts the features of its share of a split once.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from acil.distributed import Group
from acil.methods.base import Phase
from acil.vision.imageset import ImageSet


def own_rows(images: ImageSet, group: Group) -> Tensor:
    """Return which images of a set are this process's.

    Parameters
    ----------
    images : ImageSet
    group : Group

    Returns
    -------
    Tensor of shape (k,), int64
    """
    rows = torch.arange(len(images))
    places = rows if images.indices is None else images.indices
    return rows[places % group.size == group.rank]


def own_images(images: ImageSet, labels: Tensor, group: Group | None) -> tuple[ImageSet, Tensor]:
    """Return this process's images, and their labels; all of them without a group."""
    if group is None:
        return images, labels
    rows = own_rows(images, group)
    return images.subset(rows), labels[rows]


def own_phase(phase: Phase, group: Group | None) -> Phase:
    """Return this process's part of a phase, which may be empty; the phase itself without a group."""
    images, labels = own_images(phase.images, phase.labels, group)
    return phase if group is None else dataclasses.replace(phase, images=images, labels=labels)
