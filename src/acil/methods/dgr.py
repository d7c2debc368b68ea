"""DGR: a generator of old images stands in for them, and the old network labels what it draws.

Paper: Shin et al., *Continual Learning with Deep Generative Replay*, NeurIPS 2017.

Before phase k, images of the old classes are drawn from the generator G of the phases before. With ẑ the
scores of the network before the phase, n old classes and m new ones, a = m / (n + m):

    L = a · CE(z, y)                          mean over the new images
      − (1 − a) · Σ_{c<n} softmax(ẑ)_c · log softmax(z)_c     mean over the drawn ones

Then G is trained on new and drawn images together. No image is kept; G's weights are counted. G draws
images of a class (a conditional variational autoencoder, `acil.methods.generator`). On CIFAR-100 its
images are too blurred for that, and the method is known to fail there.

Settings: ``dgr_drawn`` = 100 images of each old class, ``dgr_latent`` = 100, ``dgr_generator_epochs`` =
100, ``dgr_generator_rate`` = 0.05, falling as a cosine. The network's training is the recipe's, which
``increment.NAME`` changes.

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
from typing import Any

import torch
from torch import Tensor, nn

from acil.errors import InputError
from acil.methods.base import MemoryUse, Phase, derived_seed
from acil.methods.generator import EvidenceBound, Generator
from acil.methods.incremental import IncrementalNetwork
from acil.methods.mnemonics import to_pixels
from acil.training.loop import train
from acil.training.objectives import Capturable
from acil.vision.extract import full_float32

_PREFIX = "generator."
#: Operations of ResNet-32 for an image, as a multiple of the generator's.
_CHEAPER = 5


@dataclass(frozen=True)
class DGRSettings:
    """Settings of deep generative replay.

    Attributes
    ----------
    drawn : int
        Images of each old class that a phase is trained with.
    latent : int
        Numbers that an image is drawn from.
    generator_epochs : int
    generator_rate : float
    """

    drawn: int = 100
    latent: int = 100
    generator_epochs: int = 100
    generator_rate: float = 0.05

    def __post_init__(self) -> None:
        if self.drawn < 1 or self.latent < 1 or self.generator_epochs < 1:
            raise InputError(
                "drawn, latent and generator_epochs must be at least 1. Got "
                f"drawn={self.drawn}, latent={self.latent}, generator_epochs={self.generator_epochs}."
            )


@dataclass(frozen=True, eq=False)
class Replaying(Capturable):
    """Labels for new images, the teacher's softmax for drawn ones.

    Attributes
    ----------
    teacher : nn.Module
        The network of the phase before, in evaluation mode.
    n_old : int
        Images with labels below it are drawn; their labels are not used.
    share : float
        a, weight of the new images.
    """

    teacher: nn.Module = field(repr=False)
    n_old: int
    share: float

    def __call__(
        self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the scores."""
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


class DGR(IncrementalNetwork):
    """Draw images of old classes and distil the old network on them; keep no image."""

    name = "dgr"
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
        """Return the network trained on new images and on drawn ones, which the present one labels."""
        share = len(phase.classes) / phase.n_seen
        objective = Replaying(self.network, self.n_seen, share)
        return self.fit(self.grown_student(phase), self.data(phase), phase, objective)

    def data(self, phase: Phase) -> tuple[Tensor, Tensor]:
        """Return images and labels of a phase and of what was drawn for it."""
        images, labels = phase.images.pixels(), phase.labels
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
    def own_base_epochs(self) -> int:
        """Epochs of the generator's training on the base phase, as epochs of the network's."""
        epochs: int = self.settings.generator_epochs // _CHEAPER
        return epochs

    def increment_images(self, index: int, sizes: Sequence[int], seen: Sequence[int]) -> int:
        """Return how many images one increment trains on; for the generator an image counts less."""
        images: int = sizes[index] + self.settings.drawn * seen[index - 1]
        epochs: int = self.training.epochs + self.settings.generator_epochs // _CHEAPER
        return images * epochs

    def memory(self) -> MemoryUse:
        """Count network and generator."""
        tensors = self.generator_network.state_dict().values()
        return dataclasses.replace(super().memory(), statistics=sum(t.nbytes for t in tensors))

    def state_dict(self) -> dict[str, Any]:
        """Return network and generator."""
        own = self.generator_network.state_dict()
        return {**super().state_dict(), **{_PREFIX + name: t.cpu() for name, t in own.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, exactly."""
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
            derived_seed(self.context.seed, "generator"),
        )

    def _train_generator(self, generator: Generator, phase: Phase) -> None:
        generator.steps.zero_()
        mirrored = tuple(step for step in self.training.augment if step == "flip")
        plan = dataclasses.replace(
            self.training,
            epochs=self.settings.generator_epochs,
            learning_rate=self.settings.generator_rate,
            schedule="cosine",
            warmup=0,
            augment=mirrored,
            precision="float32",
            compile=False,
        )
        images, labels = self.data(phase)
        preprocessing = self.network.backbone.preprocessing
        train(
            generator,
            images,
            labels,
            plan,
            preprocessing=preprocessing,
            seed=derived_seed(self.context.seed, "generator's training", phase.n_seen),
            device=self.context.device,
            objective=EvidenceBound(),
            progress=self.context.progress,
        )
        with full_float32():
            generator.measure_codes(images, labels, preprocessing)
