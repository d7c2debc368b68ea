"""A small conditional variational autoencoder: images of a class out of noise."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.training.objectives import Capturable
from acil.vision.backbones import Preprocessing, normalise

#: Channels of the first map of the encoder; each later one has twice as many, up to the limit.
_FIRST_CHANNELS, _MOST_CHANNELS = 32, 128
#: Maps are halved down to this side.
_SMALLEST_SIDE = 4
#: Rows of noise that trainings draw from, and how far a step moves on in them.
_NOISE_ROWS, _STRIDE = 4093, 977
#: Of pixels around what the decoder says, normalised: the smaller, the sharper, and the less alike are
#: codes of images and of noise.
_VARIANCE = 0.1
#: Images that are drawn together.
_BATCH = 500


class Generator(nn.Module):
    """Encoder and decoder, both told the class.

    Parameters
    ----------
    channels, size : int
        Of the images.
    n_classes : int
        Of all phases.
    latent : int
        Numbers that an image is drawn from.
    seed : int
        Draws weights and noise: nothing depends on the global generator, and a training that is
        interrupted goes on with the same noise.
    """

    noise: Tensor
    steps: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self, channels: int, size: int, n_classes: int, latent: int, seed: int) -> None:
        super().__init__()
        self.n_classes, self.latent = n_classes, latent
        widths, side = [channels], size
        while side > _SMALLEST_SIDE and side % 2 == 0:
            side //= 2
            widths.append(min(_FIRST_CHANNELS * 2 ** (len(widths) - 1), _MOST_CHANNELS))
        self.inner = (widths[-1], side, side)
        flat = widths[-1] * side * side
        generator = torch.Generator().manual_seed(seed)
        with torch.device("meta"):
            # Back up, the last map has as many channels as the first inner one.
            up = [*widths[:0:-1], widths[min(1, len(widths) - 1)]]
            self.encoder = nn.Sequential(*[_half(a, b) for a, b in pairwise(widths)], nn.Flatten())
            self.moments = nn.Linear(flat + n_classes, 2 * latent)
            self.start = nn.Linear(latent + n_classes, flat)
            self.decoder = nn.Sequential(nn.ReLU(), *[_double(a, b) for a, b in pairwise(up)])
            self.last = nn.Conv2d(up[-1], channels, 3, padding=1)
        self.to_empty(device="cpu")
        _draw_(self, generator)
        # Codes start as noise, and take on what an image needs.
        nn.init.zeros_(self.moments.weight)
        # Not part of the state: both follow from the seed.
        drawn = torch.randn(_NOISE_ROWS, latent, generator=generator)
        self.register_buffer("noise", drawn, persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64), persistent=False)
        #: Mean and deviation of each class's codes, which images are drawn from.
        self.register_buffer("centre", torch.zeros(n_classes, latent))
        self.register_buffer("spread", torch.ones(n_classes, latent))

    def forward(self, x: Tensor, y: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return images built again from noisy codes, and mean and log-variance of the codes."""
        mean, log_variance, label = self.encode(x, y)
        rows = (indices + _STRIDE * self.steps) % _NOISE_ROWS
        self.steps += 1
        code = mean + (log_variance / 2).exp() * self.noise[rows]
        return self.decode(code, label), mean, log_variance

    def encode(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and log-variance of the codes of normalised images, and their labels, one-hot."""
        label = functional.one_hot(y, self.n_classes).to(x.dtype)
        found = self.moments(torch.cat([self.encoder(x), label], dim=1))
        return found[:, : self.latent], found[:, self.latent :].clamp(-10, 10), label

    @torch.no_grad()
    def measure_codes(self, pixels: Tensor, labels: Tensor, preprocessing: Preprocessing) -> None:
        """Remember where the codes of each class lie: they need not fill all of N(0, 1).

        Parameters
        ----------
        pixels : Tensor of shape (n, channels, height, width), uint8
        labels : Tensor of shape (n,), int64
        preprocessing : Preprocessing
        """
        device = self.noise.device
        for label in sorted(set(labels.tolist())):
            x = normalise(pixels[labels == label].to(device), preprocessing)
            y = torch.full((len(x),), label, device=device)
            mean, log_variance, _ = self.encode(x, y)
            self.centre[label] = mean.mean(0)
            # The variance of codes: of their means, and around each
            self.spread[label] = (mean.var(0, correction=0) + log_variance.exp().mean(0)).sqrt()

    def decode(self, code: Tensor, label: Tensor) -> Tensor:
        """Return normalised images of codes (n, latent) and one-hot labels (n, n_classes)."""
        first = self.start(torch.cat([code, label], dim=1))
        built: Tensor = self.last(self.decoder(first.reshape(-1, *self.inner)))
        return built

    @torch.no_grad()
    def draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return normalised images of classes, on the device of the network.

        Parameters
        ----------
        labels : Tensor of shape (n,), int64
        generator : torch.Generator
            On the CPU.
        """
        device, drawn = self.noise.device, []
        for start in range(0, len(labels), _BATCH):
            part = labels[start : start + _BATCH]
            drawn_code = torch.randn(len(part), self.latent, generator=generator).to(device)
            code = self.centre[part.to(device)] + self.spread[part.to(device)] * drawn_code
            label = functional.one_hot(part, self.n_classes).float().to(device)
            drawn.append(self.decode(code, label))
        return torch.cat(drawn)


@dataclass(frozen=True, eq=False)
class EvidenceBound(Capturable):
    """Mean squared error of rebuilt images, and the divergence of codes from N(0, 1), for each pixel.

    Attributes
    ----------
    gradient_limit : float
        Each entry of a gradient is clamped to ± this number: variances enter as exponentials.
    """

    gradient_limit: float = 1.0

    def __call__(self, network: Any, x: Tensor, y: Tensor, indices: Tensor) -> Tensor:
        """Return the loss."""
        built, mean, log_variance = network(x, y, indices)
        # KL(N(μ, σ²) ‖ N(0, 1)) = ½ (μ² + σ² − log σ² − 1)
        divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum(1).mean() / 2
        loss: Tensor = functional.mse_loss(built, x) + 2 * _VARIANCE * divergence / x[0].numel()
        return loss


def _half(inputs: int, outputs: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def _double(inputs: int, outputs: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(nn.Upsample(scale_factor=2), convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def _draw_(network: nn.Module, generator: torch.Generator) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
