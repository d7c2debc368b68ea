"""MeRGAN: a conditional generative adversarial network remembers old classes, by replay or by alignment.

Paper: Wu, Herranz, Liu, Wang, van de Weijer and Raducanu, *Memory Replay GANs: Learning to Generate New
Categories without Forgetting*, NeurIPS 2018.

A generator G(z, c) makes images of class c from noise z. A critic D scores images, and names their class
by C:

    critic      E[D(G(z, c))] − E[D(x)] + 10 E[(‖∇D‖ − 1)²] + CE(C(x), y)
    generator   −E[D(G(z, c))] + CE(C(G(z, c)), c)

the gradient ∇D taken between real and generated images. What is real after the first phase says
``mergan_form``:

- "replay": the new images, and images of all old classes, equally many, from the generator of before;
- "alignment": the new images alone. For old classes c, G is held to the generator G_old of before:
  + λ E[(G(z, c) − G_old(z, c))²], the mean over pixels, for the same z.

The classifier learns from new images and from generated ones of every old class, with the labels that
they were asked for. No image is kept; the weights of generator and critic are.

Settings: ``mergan_form``, ``mergan_drawn`` images of each old class, ``mergan_latent`` numbers in z,
``mergan_generator_epochs``, ``mergan_generator_rate`` of Adam, ``mergan_alignment`` (λ).

Differences from the original:

1. The classifier is a network of its own, the recipe's, as in ``dgr``; the base one is shared.
2. Layers of the generator are normalised over the channels of one image, not over a batch: an image
   depends on its own z and c alone, and the alignment is zero when a phase begins.
3. Two steps of the critic for one of the generator; sizes of both networks, λ and the rate are ours.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.bench.methods.base import Phase
from acil.bench.methods.dgr import DGR, DGRSettings
from acil.bench.training.objectives import CrossEntropy
from acil.encoders.images.backbones import normalise
from acil.encoders.images.decode import centre
from acil.encoders.images.extract import full_float32

#: Channels of the critic's first map; each later one has twice as many, up to the limit.
_FIRST_CHANNELS, _MOST_CHANNELS = 32, 128
#: Maps are halved down to this side.
_SMALLEST_SIDE = 4
#: Steps of the critic for one of the generator, and weight of its gradient penalty.
_CRITIC_STEPS, _PENALTY = 2, 10.0
#: Decay rates of Adam's averages.
_BETAS = (0.5, 0.9)
#: Images that are drawn together.
_BATCH = 500


@dataclass(frozen=True)
class MeRGANSettings(DGRSettings):
    """What ``mergan_NAME`` sets."""

    drawn: Annotated[int, "at least 1"] = 500
    latent: Annotated[int, "at least 1"] = 64
    generator_rate: Annotated[float, "positive"] = 5e-4
    form: Literal["replay", "alignment"] = "replay"
    alignment: Annotated[float, "at least 0"] = 10.0  # λ


class GAN(nn.Module):
    """Generator and critic, both of classes; the seed draws their weights."""

    def __init__(self, channels: int, size: int, n_classes: int, latent: int, seed: int) -> None:
        super().__init__()
        self.n_classes, self.latent = n_classes, latent
        widths, side = [channels], size
        while side > _SMALLEST_SIDE and side % 2 == 0:
            side //= 2
            widths.append(min(_FIRST_CHANNELS * 2 ** (len(widths) - 1), _MOST_CHANNELS))
        self.inner = (widths[-1], side, side)
        flat = widths[-1] * side * side
        up = [*widths[:0:-1], widths[min(1, len(widths) - 1)]]
        with torch.device("meta"):
            self.generator = nn.ModuleList(
                [
                    nn.Linear(latent + n_classes, flat),
                    *[_double(a, b) for a, b in pairwise(up)],
                    nn.Conv2d(up[-1], channels, 3, padding=1),
                ]
            )
            self.critic = nn.ModuleList(
                [*[_half(a, b) for a, b in pairwise(widths)], nn.Linear(flat, 1 + n_classes)]
            )
        self.to_empty(device="cpu")
        source = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=source)
                nn.init.zeros_(module.bias) if module.bias is not None else None
            elif isinstance(module, nn.GroupNorm):
                module.reset_parameters()

    def images(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return normalised images of noise (n, latent) and classes (n,)."""
        start, *blocks, last = self.generator
        asked = functional.one_hot(labels, self.n_classes).to(z)
        x = start(torch.cat([z, asked], dim=1)).reshape(-1, *self.inner)
        for block in blocks:
            x = block(x)
        made: Tensor = last(x)
        return made

    def judged(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critic's score (n,) and its scores of classes (n, n_classes)."""
        *blocks, last = self.critic
        for block in blocks:
            images = block(images)
        outputs = last(images.flatten(1))
        return outputs[:, 0], outputs[:, 1:]

    @torch.no_grad()
    def draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return normalised images of these classes, on the device of the network."""
        device, drawn = next(self.parameters()).device, []
        for part in torch.split(labels, _BATCH):
            z = torch.randn(len(part), self.latent, generator=generator)
            drawn.append(self.images(z.to(device), part.to(device)))
        return torch.cat(drawn)


def _half(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.LeakyReLU(0.2))


def _double(inputs: int, outputs: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(nn.GroupNorm(1, inputs), nn.ReLU(), nn.Upsample(scale_factor=2), convolution)


def critic_loss(gan: GAN, x: Tensor, y: Tensor, z: Tensor, mix: Tensor) -> Tensor:
    """Return the critic's loss for real images x of classes y, noise z and shares (n, 1, 1, 1)."""
    with torch.no_grad():
        made = gan.images(z, y)
    real, classes = gan.judged(x)
    between = (mix * x + (1 - mix) * made).requires_grad_()
    (slope,) = torch.autograd.grad(gan.judged(between)[0].sum(), between, create_graph=True)
    penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    wrong = functional.cross_entropy(classes, y)
    loss: Tensor = gan.judged(made)[0].mean() - real.mean() + _PENALTY * penalty + wrong
    return loss


def generator_loss(gan: GAN, z: Tensor, y: Tensor) -> Tensor:
    """Return the generator's loss for noise and the classes that are asked for."""
    score, classes = gan.judged(gan.images(z, y))
    return functional.cross_entropy(classes, y) - score.mean()


def alignment_loss(gan: GAN, before: GAN, z: Tensor, y: Tensor) -> Tensor:
    """Return how far images are from those of the generator before, for the same noise and classes."""
    with torch.no_grad():
        wanted = before.images(z, y)
    return functional.mse_loss(gan.images(z, y), wanted)


class MeRGAN(DGR):
    """Draw labelled images of old classes from a conditional GAN; keep no image."""

    name = "mergan"
    settings_type = MeRGANSettings

    generator_network: Any

    def increment(self, phase: Phase) -> Any:
        return self.fit(self.grown_student(phase), self.data(phase), phase, CrossEntropy())

    @property
    def generator_epochs(self) -> int:
        """Epochs of the generator's training, as epochs of the network's."""
        epochs: int = self.settings.generator_epochs
        return epochs

    def _empty_generator(self) -> Any:
        preprocessing = self.network.backbone.preprocessing
        return GAN(
            len(preprocessing.mean),
            preprocessing.size,
            self.context.n_classes,
            self.settings.latent,
            self.context.seed_for("generator"),
        )

    def _train_generator(self, generator: Any, phase: Phase) -> None:
        device, settings = self.context.device, self.settings
        preprocessing = self.network.backbone.preprocessing
        images, labels = self.data(phase)
        before = None
        if settings.form == "alignment" and self._drawn is not None:
            images, labels = centre(phase.images.pixels(), preprocessing.size), phase.labels
            before = copy.deepcopy(self.generator_network).to(device).requires_grad_(False)
        n_old = phase.n_seen - len(phase.classes)
        source = self.generator("generator's training", phase)
        gan = generator.to(device).requires_grad_(True)
        optimizers = [
            torch.optim.Adam(part.parameters(), lr=settings.generator_rate, betas=_BETAS)
            for part in (gan.critic, gan.generator)
        ]

        def noise(n: int) -> Tensor:
            return torch.randn(n, settings.latent, generator=source).to(device)

        def step(which: int, loss: Tensor) -> None:
            optimizers[which].zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizers[which].step()

        taken = 0
        with full_float32(), torch.enable_grad():
            for _ in range(settings.generator_epochs):
                order = torch.randperm(len(images), generator=source)
                for chosen in torch.split(order, self.training.batch_size):
                    x = normalise(images[chosen].to(device), preprocessing)
                    y, n = labels[chosen].to(device), len(chosen)
                    mix = torch.rand(n, 1, 1, 1, generator=source).to(device)
                    step(0, critic_loss(gan, x, y, noise(n), mix))
                    taken += 1
                    if taken % _CRITIC_STEPS:
                        continue
                    loss = generator_loss(gan, noise(n), y)
                    if before is not None:
                        asked = torch.randint(n_old, (n,), generator=source).to(device)
                        far = alignment_loss(gan, before, noise(n), asked)
                        loss = loss + settings.alignment * far
                    step(1, loss)
        gan.requires_grad_(False).eval()
