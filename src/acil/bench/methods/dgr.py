"""DGR: a generator of old images stands in for them, and the old network labels what it draws.

Paper: Shin et al., *Continual Learning with Deep Generative Replay*, NeurIPS 2017.

Before phase k, images of the old classes are drawn from the generator G of the phases before. With ẑ the
scores of the network before the phase, n old classes and m new ones, a = m / (n + m):

    L = a · CE(z, y)                          mean over the new images
      − (1 − a) · Σ_{c<n} softmax(ẑ)_c · log softmax(z)_c     mean over the drawn ones

Then G is trained on new and drawn images together. No image is kept; G's weights are counted. G draws
images of a class (a conditional variational autoencoder). On CIFAR-100 its
images are too blurred for that, and the method is known to fail there.

Differences from the original:

1. The generator is an autoencoder that is told the class (there a Wasserstein GAN that is not), so that
   old classes can be drawn in equal numbers. Codes are drawn from N(mean, deviation) of the codes that
   the class had in training: from N(0, 1) hardly any drawn image is one of its class.
2. Images are drawn once a phase, not for each batch.
3. The base network is the shared one, trained by the recipe.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.bench.methods.base import MemoryUse, Phase
from acil.bench.methods.incremental import IncrementalNetwork
from acil.bench.training.objectives import Capturable, Scored
from acil.bench.training.settings import Settings
from acil.encoders.images.backbones import Preprocessing, normalise
from acil.encoders.images.decode import centre, to_pixels
from acil.encoders.images.extract import full_float32

_PREFIX = "generator."
#: Operations of ResNet-32 for an image, as a multiple of the generator's.
_CHEAPER = 5
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


@dataclass(frozen=True)
class DGRSettings(Settings):
    """What ``dgr_NAME`` sets."""

    drawn: Annotated[int, "at least 1"] = 100  # images of each old class
    latent: Annotated[int, "at least 1"] = 100  # numbers that an image is drawn from
    generator_epochs: Annotated[int, "at least 1"] = 100
    generator_rate: Annotated[float, "positive"] = 0.05  # falling as a cosine


@dataclass(frozen=True, eq=False)
class Replaying(Capturable):
    """Labels for new images, the teacher's softmax for drawn ones."""

    teacher: nn.Module = field(repr=False)
    n_old: int  # images with labels below it are drawn; their labels are not used
    share: float  # a, weight of the new images

    def __call__(self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        scores = network(x).float()
        with torch.no_grad():
            soft = self.teacher(x).float().softmax(1)
        logs = scores.log_softmax(1)
        by_label = -logs.gather(1, y[:, None])[:, 0]
        by_teacher = -(soft * logs[:, : self.n_old]).sum(1)
        new = (y >= self.n_old).float()
        loss = self.share * _mean(by_label, new) + (1 - self.share) * _mean(by_teacher, 1 - new)
        return loss, scores


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the values that a mask names; 0 without any."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


class Generator(nn.Module):
    """A small conditional variational autoencoder: encoder and decoder, both told the class.

    An image is drawn from ``latent`` numbers. The seed draws weights and noise: nothing depends on the
    global generator.
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
        moments = self.moments(torch.cat([self.encoder(x), label], dim=1))
        return moments[:, : self.latent], moments[:, self.latent :].clamp(-10, 10), label

    @torch.no_grad()
    def measure_codes(self, pixels: Tensor, labels: Tensor, preprocessing: Preprocessing) -> None:
        """Remember where the codes of each class lie: they need not fill all of N(0, 1)."""
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
        """Return normalised images of classes, on the device of the network."""
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
    """Mean squared error of rebuilt images, and the divergence of codes from N(0, 1), for each pixel."""

    gradient_limit: float = 1.0  # variances enter as exponentials

    def __call__(self, network: Any, x: Tensor, y: Tensor, indices: Tensor) -> Tensor:
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


class DGR(IncrementalNetwork):
    """Draw images of old classes and distil the old network on them; keep no image."""

    name = "dgr"
    holds_phases = True
    settings_type = DGRSettings

    generator_network: Generator
    #: What the phase under way has drawn; None in the base phase.
    _drawn: tuple[Tensor, Tensor] | None = None

    def learn(self, phase: Phase) -> None:
        """Learn one phase, then train the generator on it and on what the old one has drawn."""
        self._check(phase)
        is_first = self.network is None
        self._drawn = None if is_first else self.draw(phase)
        super().learn(phase)
        generator = self._empty_generator() if is_first else copy.deepcopy(self.generator_network)
        self._train_generator(generator, phase)
        self.generator_network, self._drawn = generator, None

    def increment(self, phase: Phase) -> Any:
        share = len(phase.classes) / phase.n_seen
        objective = Replaying(self.network, self.n_seen, share)
        return self.fit(self.grown_student(phase), self.data(phase), phase, objective)

    def data(self, phase: Phase) -> tuple[Tensor, Tensor]:
        # As large as those that are drawn
        images = centre(phase.images.pixels(), self.network.backbone.preprocessing.size)
        labels = phase.labels
        if self._drawn is None:
            return images, labels
        return torch.cat([images, self._drawn[0]]), torch.cat([labels, self._drawn[1]])

    def draw(self, phase: Phase) -> tuple[Tensor, Tensor]:
        """Return images (uint8) and labels of all old classes, drawn for a phase."""
        labels = torch.arange(self.n_seen).repeat_interleave(self.settings.drawn)
        preprocessing = self.network.backbone.preprocessing
        with full_float32():
            images = self.generator_network.draw(labels, self.generator("drawn images", phase))
        return to_pixels(images, preprocessing).cpu(), labels

    @property
    def generator_epochs(self) -> int:
        """Epochs of the generator's training, as epochs of the network's."""
        epochs: int = self.settings.generator_epochs // _CHEAPER
        return epochs

    def trained_images(self, sizes: Sequence[int], seen: Sequence[int]) -> int:
        return super().trained_images(sizes, seen) + self.generator_epochs * sizes[0]

    def increment_images(self, index: int, sizes: Sequence[int], seen: Sequence[int]) -> int:
        """Return how many images one increment trains on; for the generator an image counts less."""
        images: int = sizes[index] + self.settings.drawn * seen[index - 1]
        return images * (self.training.epochs + self.generator_epochs)

    def memory(self) -> MemoryUse:
        """Count network and generator."""
        tensors = self.generator_network.state_dict().values()
        return dataclasses.replace(super().memory(), statistics=sum(t.nbytes for t in tensors))

    def state_dict(self) -> dict[str, Any]:
        generator = self.generator_network.state_dict()
        return {**super().state_dict(), **{_PREFIX + name: t.cpu() for name, t in generator.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        made = self._empty_generator()
        made.load_state_dict({name: state[_PREFIX + name] for name in made.state_dict()})
        self.generator_network = made.to(self.context.device).eval()

    def _empty_generator(self) -> Generator:
        preprocessing = self.network.backbone.preprocessing
        return Generator(
            len(preprocessing.mean),
            preprocessing.size,
            self.context.n_classes,
            self.settings.latent,
            self.context.seed_for("generator"),
        )

    def _train_generator(self, generator: Generator, phase: Phase) -> None:
        generator.steps.zero_()
        images, labels = self.data(phase)
        self.train_further(
            generator,
            (images, labels),
            "generator's training",
            EvidenceBound(),
            epochs=self.settings.generator_epochs,
            learning_rate=self.settings.generator_rate,
            schedule="cosine",
            augment=tuple(step for step in self.training.augment if step == "flip"),
            precision="float32",
            compile=False,
        )
        with full_float32():
            generator.measure_codes(images, labels, self.network.backbone.preprocessing)
