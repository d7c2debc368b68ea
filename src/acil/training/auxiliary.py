"""Auxiliary tasks of base training: what a recipe may ask for beside the classification of images."""

from __future__ import annotations

from dataclasses import dataclass

from acil.errors import InputError

#: Whole turns of a copy, in quarters, for each number of angles.
ANGLES = {1: (0,), 2: (0, 2), 4: (0, 1, 2, 3)}
#: Orders of the channels of a copy, the usual one first: rotated, then with two channels swapped.
COLOURS = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0))


@dataclass(frozen=True)
class Auxiliary:
    """Tasks that shape the features and are gone when training ends; by default there is none.

    They act in the default objective, on networks that have features and a classifier.

    Attributes
    ----------
    copies : int
        Copies of each image, augmented anew, turned and recoloured at random. A linear layer of its own
        tells class, angle and colours of a copy; 0 leaves this task out. Each copy costs as much as the
        image itself.
    angles : {1, 2, 4}
        Angles of a copy: 0; 0 and 180; 0, 90, 180 and 270 degrees.
    colours : {1, 2, 3, 4, 5, 6}
        Orders of the colour channels of a copy; 1 is the usual one alone.
    crossed : bool
        Whether a copy has any angle with any colours (``angles * colours`` labels a class), or is either
        turned or recoloured (``angles + colours - 1``).
    weight : float
        Of the loss of the copies; the classification of images has 1.
    mixup : float
        Share of images that are mixed with another one of the batch, λ x + (1 - λ) x', with λ uniform
        between 0 and 1; their losses are mixed in the same way.
    contrast : float
        Weight of the supervised contrastive loss over all copies; without any, over two augmentations of
        each image.
    distillation : float
        Share w of the loss that follows teachers: (1 - w) · cross entropy + w · T² · distillation.
    teachers : int
        Networks that are trained first, with the same settings but no distillation; their mean score
        is what ``distillation`` follows.

    Examples
    --------
    >>> rotation = Auxiliary(copies=1)
    >>> rotation.transformations, rotation.views, rotation.inputs_per_image
    (4, 2, 2)
    """

    copies: int = 0
    angles: int = 4
    colours: int = 1
    crossed: bool = False
    weight: float = 1.0
    mixup: float = 0.0
    contrast: float = 0.0
    distillation: float = 0.0
    teachers: int = 3

    def __post_init__(self) -> None:
        _require("copies", self.copies, self.copies >= 0, "at least 0")
        _require("angles", self.angles, self.angles in ANGLES, "1, 2 or 4")
        _require("colours", self.colours, 1 <= self.colours <= len(COLOURS), "from 1 to 6")
        _require("weight", self.weight, 0 < self.weight < float("inf"), "positive")
        _require("contrast", self.contrast, 0 <= self.contrast < float("inf"), "at least 0")
        for name in ("mixup", "distillation"):
            value = getattr(self, name)
            _require(name, value, 0 <= value <= 1, "from 0 to 1")
        _require("teachers", self.teachers, self.teachers >= 1, "at least 1")

    @property
    def active(self) -> bool:
        """Whether there is any task."""
        return self.copies > 0 or self.mixup > 0 or self.contrast > 0 or self.distillation > 0

    @property
    def transformations(self) -> int:
        """Labels that each class is split into for its copies."""
        return self.angles * self.colours if self.crossed else self.angles + self.colours - 1

    @property
    def views(self) -> int:
        """Augmentations of an image that a step sees."""
        return 1 + max(self.copies, 1 if self.contrast else 0)

    @property
    def draws(self) -> int:
        """Random numbers that a step needs for each image."""
        return self.copies + (1 if self.mixup else 0)

    @property
    def inputs_per_image(self) -> int:
        """Network inputs that one image costs in an epoch, teachers' training included."""
        return self.views * (1 + (self.teachers if self.distillation else 0))


def _require(name: str, value: object, holds: bool, what: str) -> None:
    if not holds:
        raise InputError(f"Training setting auxiliary.{name} must be {what}. Got {value!r} instead.")
