"""Where a training stood, in one file, so that it can go on after being killed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from acil.bench.training.objectives import Objective
from acil.bench.training.settings import Auxiliary, Training
from acil.core.files.reading import TensorFile
from acil.core.files.writing import write_tensors
from acil.encoders.images.backbones import Preprocessing
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError, ModelFileError

logger = logging.getLogger(__name__)

_METADATA_KEY = "acil_training"
_DIGEST_KEY = "sha256"
_FORMAT = 1


@dataclass(frozen=True)
class Position:
    """The place in a training after which a checkpoint was written."""

    epoch: int  # counted from 0
    step: int  # steps of this epoch that are done
    seen: int  # images of this epoch that are done


class Checkpoint:
    """The file ``training.safetensors`` in a folder, written whole or not at all.

    It holds weights, running statistics, momentum and the position. It holds no state of a random
    generator, because a training derives the order and the augmentation of each part of an epoch
    from its seed and the part's number.

    The folder is made when the first checkpoint is written. Two checkpoints are at least
    ``every_seconds`` apart; one more is written at the end of the training. ``other`` is what a
    checkpoint of another training in this folder means: an error, or a new start that is logged, as
    after a phase that was learnt again on a GPU, where last bits differ.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every_seconds: float = 60.0,
        other: Literal["refuse", "restart"] = "refuse",
    ) -> None:
        self.path = Path(folder) / "training.safetensors"
        self.every_seconds = every_seconds
        self.other = other
        self._last = time.monotonic()

    def due(self) -> bool:
        """Say whether enough time has passed since the last checkpoint, or since the start."""
        return time.monotonic() - self._last >= self.every_seconds

    def save(
        self, identity: Mapping[str, Any], position: Position, tensors: Mapping[str, Tensor]
    ) -> None:
        """Replace the file by the present state of the training that has this identity (JSON-able)."""
        content = {"format": _FORMAT, "identity": dict(identity), "position": vars(position)}
        text = json.dumps(content)
        metadata = {_METADATA_KEY: text, _DIGEST_KEY: digest(tensors, text)}
        write_tensors(self.path, tensors, metadata, make_folder=True)
        self._last = time.monotonic()

    def load(
        self, identity: Mapping[str, Any], like: Mapping[str, Tensor]
    ) -> tuple[Position, dict[str, Tensor]] | None:
        """Return position and tensors of the file, or None when there is nothing to go on from.

        A damaged file is logged and left aside: the training starts anew and replaces it. So is one that
        has other tensors than those in ``like``. One of another training is an InputError, unless this
        checkpoint was made with ``other="restart"``.
        """
        self._last = time.monotonic()
        try:
            if not self.path.exists():
                return None
            content, stored = self._read()
            position = Position(**content["position"])
            before = dict(content["identity"])
        except OSError as error:
            raise ModelFileError(
                f"Cannot read the checkpoint {self.path}: {error.strerror}. Make it readable, or remove "
                "it to start anew."
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("The checkpoint %s is damaged (%s). Training starts anew.", self.path, error)
            return None
        now = json.loads(json.dumps(dict(identity)))
        differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if differing:
            what = "; ".join(f"{name} was {before.get(name)}, now {now.get(name)}" for name in differing)
            if self.other == "restart":
                logger.warning("Training starts anew: %s, in the checkpoint %s.", what, self.path)
                return None
            raise InputError(
                f"The checkpoint {self.path} belongs to another training: {what}. Go on with the same "
                "settings, seed and data, or choose another folder, or remove the file to start anew."
            )
        if {name: t.shape for name, t in stored.items()} != {name: t.shape for name, t in like.items()}:
            logger.warning("The checkpoint %s is of another network. Training starts anew.", self.path)
            return None
        return position, stored

    def part(self, name: str) -> Checkpoint:
        """Return the checkpoint of a training that this one needs, in a folder within its own."""
        return Checkpoint(self.path.parent / name, self.every_seconds, self.other)

    def remove(self) -> None:
        """Delete the file, if there is one, and those of its parts."""
        self.path.unlink(missing_ok=True)
        for part in self.path.parent.glob(f"*/{self.path.name}"):
            part.unlink()
            with suppress(OSError):
                part.parent.rmdir()

    def _read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        file = TensorFile(self.path)
        content, stored = file.facts(_METADATA_KEY), file.tensors()
        if file.metadata.get(_DIGEST_KEY) != digest(stored, file.metadata[_METADATA_KEY]):
            raise ValueError("its content does not match its checksum")
        if content["format"] != _FORMAT:
            raise ValueError(f"it has format {content['format']}, not {_FORMAT}")
        return content, stored


def training_identity(
    network: nn.Module,
    images: Tensor | ImageSet,
    labels: Tensor,
    settings: Training,
    preprocessing: Preprocessing | None,
    seed: int,
    objective: Objective,
) -> dict[str, Any]:
    """Return what a checkpoint must have in common with the training that goes on from it; JSON-able."""
    told = dataclasses.asdict(settings)
    if settings.auxiliary == Auxiliary():
        del told["auxiliary"]  # so that checkpoints of earlier versions are known again
    for name in Training.LATER:
        if not told[name]:
            del told[name]
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {
        **{f"training.{key}": value for key, value in told.items()},
        "seed": seed,
        "preprocessing": None if preprocessing is None else preprocessing.to_dict(),
        "objective": objective.identity,
        "images": _images_digest(images),
        "labels": digest({"": labels}),
        "network at the start": digest(state),
    }


def _images_digest(images: Tensor | ImageSet) -> str:
    if isinstance(images, Tensor):
        return digest({"": images})
    # Of files, which they are: their content would take as long as an epoch.
    return digest({} if images.indices is None else {"": images.indices}, images.identity)


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Return a hash of names, types, shapes and contents of tensors, and of a text."""
    hasher = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        if flat.numel():
            content: Any = flat.view(torch.uint8).numpy()
            hasher.update(content)
    return hasher.hexdigest()
