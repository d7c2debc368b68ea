"""BiC: distillation on exemplars, then two numbers that take the bias out of the new classes' scores.

Paper: Wu et al., *Large Scale Incremental Learning*, CVPR 2019.

With n old and m new classes, scores z, and ẑ the corrected scores of the network before the phase:

    stage 1:  L = λ · KD(ẑ, z[:n]; T) + (1 − λ) · CE(z, y),  λ = n / (n + m)
    stage 2:  z_c ← α z_c + β for new classes c, the network fixed;  L = CE + 0.05 β²

Stage 1 sees new images and exemplars but for a balanced tenth: of 20 exemplars a class, 18 train and 2
choose α and β, and as many new images of each class are taken out. Those stay apart: they are the
exemplars of first rank, and no later stage 1 sees them, except where a memory of "N in total" leaves a
class fewer and fewer: then as many stay apart as a tenth of what is left. One pair (α, β) counts, that
of the newest classes; the teacher of the next phase has it, the classes' own scores do not any more.

Differences from the original:

1. Stage 2 sees the held-out images without augmentation, so that their scores are computed once.
2. The base network is the shared one, trained by the recipe on all images of the base classes, those
   that are held out from then on included.
3. ImageNet's weight decay is the same in all phases (there it shrinks with the phase's number).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.bench.methods.base import Phase
from acil.bench.methods.base_network import classifier_scores, network_features
from acil.bench.methods.incremental import IncrementalNetwork, Schedules
from acil.bench.training.objectives import Capturable, Distilling, Scored
from acil.bench.training.settings import Settings, check_rising
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError


@dataclass(frozen=True)
class BiCSettings(Settings):
    """``memory_rule``, and what ``bic_NAME`` sets; stage 2 has batch size and momentum of stage 1."""

    memory_rule: str = "20 per class"
    temperature: Annotated[float, "positive"] = 2.0  # T
    held_out: Annotated[float, "above 0 and below 1"] = 0.1
    beta_decay: Annotated[float, "at least 0"] = 0.05  # of β²
    correction_epochs: Annotated[int, "at least 0"] = 200
    correction_rate: Annotated[float, "positive"] = 0.1  # for batches of 256, in proportion for others
    correction_milestones: tuple[int, ...] = (60, 120, 160, 180)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rising("correction_milestones", self.correction_milestones)


class BiasCorrection(nn.Module):
    """Scores of the classes from ``n_old`` on become α z + β; the others stay.

    Examples
    --------
    >>> import torch
    >>> BiasCorrection(1, alpha=0.5, beta=-1.0)(torch.tensor([[3.0, 4.0]])).tolist()
    [[3.0, 1.0]]
    """

    def __init__(self, n_old: int, alpha: float = 1.0, beta: float = 0.0) -> None:
        super().__init__()
        self.n_old = n_old
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.beta = nn.Parameter(torch.tensor(beta))

    def forward(self, scores: Tensor) -> Tensor:
        """Return corrected scores, of the same shape."""
        old, new = scores[:, : self.n_old], scores[:, self.n_old :]
        return torch.cat([old, self.alpha * new + self.beta], dim=1)


@dataclass(frozen=True, eq=False)
class CorrectionLoss(Capturable):
    """Cross entropy of corrected scores, and decay · β²."""

    decay: float

    def __call__(self, network: Any, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        scores = network(x)
        return functional.cross_entropy(scores, y) + self.decay * network.beta.square(), scores


def hold_out(labels: Tensor, n_old: int, wanted: int, generator: torch.Generator) -> Tensor:
    """Say which samples are held out, as many of every class, and never all of one.

    Of old classes, those below ``n_old``, the first ones, since exemplars are ordered by rank; of new
    ones at random.
    """
    counts = torch.bincount(labels)
    if int(counts[counts > 0].min()) <= wanted:
        raise InputError(
            f"BiC holds out {wanted} sample(s) of each class and trains on the others, but a class has "
            f"{int(counts[counts > 0].min())}. Keep at least two exemplars of each class (memory_rule), "
            "or lower held_out."
        )
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(len(counts)):
        members = torch.nonzero(labels == label).flatten()
        if label >= n_old:
            members = members[torch.randperm(len(members), generator=generator)]
        held[members[:wanted]] = True
    return held


def _where(images: Tensor | ImageSet, chosen: Tensor) -> Tensor | ImageSet:
    if isinstance(images, Tensor):
        return images[chosen]
    return images.subset(torch.nonzero(chosen).flatten())


class BiC(IncrementalNetwork):
    """Distil on exemplars and correct the newest scores."""

    name = "bic"
    settings_type = BiCSettings
    schedules: ClassVar[Schedules] = {
        "paper": {"epochs": 250, "milestones": (100, 150, 200), "weight_decay": 2e-4},
        "imagenet": {
            "epochs": 100,
            "batch_size": 256,
            "milestones": (30, 60, 80, 90),
            "weight_decay": 1e-4,
        },
    }

    #: Of the newest classes; None after the base phase.
    correction: BiasCorrection | None = None

    def increment(self, phase: Phase) -> Any:
        """Return the network after stage 1; its correction is learnt on what stage 1 did not see."""
        images, labels = self.data(phase)
        held = self._held_out(phase, labels)
        student = self.grown_student(phase)
        share, temperature = self.n_seen / phase.n_seen, self.settings.temperature
        objective = Distilling(self.teacher(), self.n_seen, temperature, 1 - share, share)
        self.fit(student, (_where(images, ~held), labels[~held]), phase, objective)
        features = network_features(student.backbone, _where(images, held), self.context.device)
        scores = classifier_scores(student.classifier, features, self.context.device)
        self.correction = self.fitted_correction(scores, labels[held])
        return student

    def fitted_correction(self, scores: Tensor, labels: Tensor) -> BiasCorrection:
        """Return the correction that is best on held-out scores (n, classes) and their labels."""
        correction, settings = BiasCorrection(self.n_seen), self.settings
        self.train_further(
            correction,
            (scores, labels),
            "bias correction",
            CorrectionLoss(settings.beta_decay),
            epochs=settings.correction_epochs,
            learning_rate=settings.correction_rate * self.training.batch_size / 256,
            milestones=settings.correction_milestones,
            decay=0.1,
            weight_decay=0.0,
            augment=(),
            precision="float32",
            compile=False,
        )
        return correction

    def first_exemplars(self, phase: Phase) -> Tensor:
        """Return the images of a phase that were held out: they are kept, and stay apart."""
        labels = torch.cat([phase.labels, self.exemplars.labels])
        held = self._held_out(phase, labels)[: len(phase.labels)]
        return torch.nonzero(held).flatten()

    def _held_out(self, phase: Phase, labels: Tensor) -> Tensor:
        """Say which of new images and exemplars, with these labels, stage 1 does not see."""
        counts = torch.bincount(labels)
        # As many as a share of the exemplars of an old class; in the base phase, of those to come.
        quota = self.exemplars.rule.quota(phase.n_seen) or 0
        smallest = int(counts[: self.n_seen].min()) if self.n_seen else quota
        wanted = max(1, round(self.settings.held_out * smallest))
        if not self.n_seen:
            wanted = min(wanted, int(counts.min()) - 1)
        return hold_out(labels, self.n_seen, wanted, self.generator("held out", phase))

    def teacher(self) -> nn.Module:
        """Return the network with the correction of its newest classes."""
        parts = [self.network] if self.correction is None else [self.network, self.correction]
        return nn.Sequential(*parts)

    def scores(self, features: Tensor) -> Tensor:
        """Return the scores of features, those of the newest classes corrected."""
        scores = super().scores(features)
        if self.correction is None:
            return scores
        return classifier_scores(self.correction, scores, self.context.device)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self.correction is not None:
            state["correction"] = (
                torch.stack([self.correction.alpha, self.correction.beta]).detach().cpu()
            )
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.correction = None
        if "correction" in state:
            values = state["correction"].tolist()
            self.correction = BiasCorrection(self.history[-2], *values).to(self.context.device).eval()
