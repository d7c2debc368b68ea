"""A network that is trained on a CPU in seconds, for scikit-learn's 8 x 8 digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from acil.vision.base import Backbone, Preprocessing, convolution, draw_weights_

#: Of the digits with their 17 grey levels spread over 0 to 1.
DIGITS_MEAN, DIGITS_STD = (0.3053,), (0.3760,)


class SmallCNN(Backbone):
    """Two convolutions for 1 x 8 x 8 images: 64 features, 18,912 parameters.

    Parameters
    ----------
    generator : torch.Generator, optional
        Draws the weights; None means a generator with seed 0.
    size : int, default=8
        Height and width of images.
    """

    def __init__(self, generator: torch.Generator | None = None, *, size: int = 8) -> None:
        preprocessing = Preprocessing(DIGITS_MEAN, DIGITS_STD, size)
        super().__init__("smallcnn", 64, preprocessing, {"size": size})
        self.stage1 = nn.Sequential(convolution(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(2)
        self.stage2 = nn.Sequential(convolution(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        draw_weights_(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return the average of the last map over all places, (n, 64)."""
        last: Tensor = self.stage2(self.pool(self.stage1(x)))
        return last.mean(dim=(2, 3))

    def taps(self) -> dict[str, nn.Module]:
        """Return "stage1" (8 x 8 places) and "stage2" (4 x 4)."""
        return {"stage1": self.stage1, "stage2": self.stage2}

    def stages(self) -> list[list[nn.Module]]:
        """Return the two stages."""
        return [[self.stage1], [self.pool, self.stage2]]
