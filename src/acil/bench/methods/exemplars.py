"""Exemplars: the samples of old classes that a method keeps, chosen by herding, counted in bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError

#: Herding may pick an image again and again; after so many moves for each wanted image, those that are
#: still missing are taken in the order of their last score.
_MOVES_PER_PICK = 50


@dataclass(frozen=True)
class MemoryRule:
    """How many exemplars are kept.

    A strict rule is a memory for exemplars *and* images of a phase, see `after`.

    Examples
    --------
    >>> MemoryRule.parse("2000 in total").quota(60)
    33
    >>> MemoryRule.parse("strict").after(1, (25_000, 5000, 5000), n_classes=100).quota(60)
    33
    """

    count: int | None  # None keeps everything, 0 nothing
    scope: Literal["per class", "in total"]  # "in total" is divided by the classes seen, rounding down
    strict: bool = False

    @classmethod
    def parse(cls, text: str) -> MemoryRule:
        """Read "N per class" or "N in total", either with ", strict"; "strict" alone is 20 per class."""
        rule = "20 per class, strict" if text.strip() == "strict" else text
        match = re.fullmatch(r"\s*(\d+)\s+(per class|in total)\s*(,\s*strict\s*)?", rule)
        if match is None or int(match[1]) < 1:
            raise InputError(
                "memory_rule must be like '20 per class', '2000 in total', 'strict' or '20 per class, "
                f"strict'. Got {text!r} instead."
            )
        scope: Literal["per class", "in total"] = "per class" if match[2] == "per class" else "in total"
        return cls(int(match[1]), scope, strict=match[3] is not None)

    def quota(self, n_classes: int) -> int | None:
        """Return how many exemplars each of so many classes may have; None for no limit."""
        if self.count is None or self.scope == "per class":
            return self.count
        return self.count // n_classes

    def budget(self, n_classes: int) -> int:
        """Return how many exemplars there are in the end, with so many classes in all."""
        return (self.count or 0) * (n_classes if self.scope == "per class" else 1)

    def after(self, index: int, sizes: Sequence[int], n_classes: int) -> MemoryRule:
        """Return the rule that holds after a phase of a run whose phases have so many images.

        Under a strict one, old exemplars and the images of a later phase together are at most B + n, B
        the `budget` and n the images of the largest later phase: what the next phase leaves of that is
        for exemplars. After the last phase there are as many as it had itself. The base phase comes
        before: its images are not counted.
        """
        if not self.strict:
            return self
        later = sizes[1:]
        following = sizes[index + 1] if index + 1 < len(sizes) else sum(later[-1:])
        total = self.budget(n_classes) + max(later, default=0)
        return MemoryRule(total - following, "in total")


class ExemplarMemory:
    """Images of old classes: those of a class stand together, in the order of their herding rank.

    Exemplars are chosen once; when the quota falls, the last ranks go. A rule that would leave some of
    the classes of all phases without an exemplar is refused.
    """

    def __init__(self, rule: MemoryRule, n_classes: int) -> None:
        if rule.count and rule.quota(n_classes) == 0:
            raise InputError(
                f"{rule.count} exemplars in total do not suffice for {n_classes} classes. Set "
                f"memory_rule to at least '{n_classes} in total'."
            )
        self.rule = rule
        self.labels = torch.empty(0, dtype=torch.int64)
        #: Of shape (n, channels, height, width), in the order of their labels; (0,) before the first.
        self.pixels = torch.empty(0, dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Bytes of pixels and labels."""
        return self.labels.nbytes + self.pixels.nbytes

    def with_new(self, images: ImageSet, labels: Tensor) -> tuple[Tensor | ImageSet, Tensor]:
        """Return the data of a phase and the exemplars of old classes, together, to train on."""
        return images.to_train_with(self.pixels), torch.cat([labels, self.labels])

    def update(
        self,
        images: ImageSet,
        labels: Tensor,
        features: Tensor | None,
        n_seen: int,
        first: Tensor | None = None,
    ) -> None:
        """Take exemplars of new classes and shrink the sets of the old ones to the quota.

        Herding chooses by features (n, d), or by none if the rule keeps everything or nothing. Only the
        chosen images are read. Those at the positions ``first`` get the first ranks of their classes.
        The new classes are included in ``n_seen``.
        """
        quota = self.rule.quota(n_seen)
        first = torch.empty(0, dtype=torch.int64) if first is None else first
        new = _chosen(labels, features, quota, first)
        old = _first_ranks(self.labels, quota)
        self.pixels = torch.cat([self.pixels[old], images.subset(new).pixels()])
        self.labels = torch.cat([self.labels[old], labels[new]])

    def state_dict(self) -> dict[str, Any]:
        """Return pixels and labels; nothing while the memory is empty."""
        return {"pixels": self.pixels, "labels": self.labels} if len(self) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.pixels = state.get("pixels", torch.empty(0, dtype=torch.uint8))
        self.labels = state.get("labels", torch.empty(0, dtype=torch.int64))


def herd(features: Tensor, count: int) -> Tensor:
    """Return positions of images whose mean feature stays near that of all, best first, at most all n.

    With f_i the features at length 1, μ their mean and w = μ at first: pick argmax_i w · f_i, unless it
    was picked before; then w ← w + μ − f_i, also after a repeated pick.
    """
    unit = functional.normalize(features.double())
    mean = unit.mean(0)
    direction = mean.clone()
    count = min(count, len(unit))
    picked: dict[int, None] = {}
    for _ in range(_MOVES_PER_PICK * count):
        if len(picked) == count:
            break
        best = int((unit @ direction).argmax())
        picked.setdefault(best)
        direction += mean - unit[best]
    rest = (unit @ direction).argsort(descending=True, stable=True).tolist()
    ranked = [*picked, *(index for index in rest if index not in picked)]
    return torch.tensor(ranked[:count], dtype=torch.int64)


def mean_features(features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean feature of each class, (classes, features), classes in rising order."""
    classes, labels = sorted(set(labels.tolist())), labels.to(features.device)
    return torch.stack([features[labels == label].mean(0) for label in classes])


def _chosen(labels: Tensor, features: Any, quota: int | None, first: Tensor) -> Tensor:
    """Return the positions of the exemplars of each class, classes in order."""
    parts = [torch.empty(0, dtype=torch.int64)]
    for label in sorted(set(labels.tolist())) if quota != 0 else []:
        members = torch.nonzero(labels == label).flatten()
        if quota is not None:
            ahead = first[labels[first] == label][:quota]
            members = members[~torch.isin(members, ahead)]
            members = torch.cat([ahead, members[herd(features[members], quota - len(ahead))]])
        parts.append(members)
    return torch.cat(parts)


def _first_ranks(labels: Tensor, quota: int | None) -> Tensor:
    """Return the positions of the first ``quota`` exemplars of each class."""
    parts = [torch.nonzero(labels == label).flatten()[:quota] for label in sorted(set(labels.tolist()))]
    return torch.cat([torch.empty(0, dtype=torch.int64), *parts])
