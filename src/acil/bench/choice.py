"""Choosing a recipe without a look at test images: class-incremental learning inside the base classes.

Only training images of the base classes are used. Each split draws a part of these classes as a base of
its own (half of them or four fifths, or as many as asked for); the others arrive in five phases. A tenth
of the images of each class is held out: no network and no head sees them, and accuracy is counted on
them alone. A candidate is a recipe with some values changed; it is judged by the mean accuracy over the
phases (pseudo-Ā), next to the unchanged recipe on the same splits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from acil.bench.datasets import load, restrict
from acil.bench.job import accuracy
from acil.bench.methods.frozen_features import Standardize
from acil.bench.orders import canonical_order, class_order
from acil.bench.prepare import ProgressListener, dataset_name, digest
from acil.bench.records import Records
from acil.bench.rundir import environment_record, made
from acil.bench.runner import RunFailedError
from acil.bench.training.checkpoint import Checkpoint
from acil.bench.training.loop import train
from acil.bench.training.network import Network
from acil.bench.training.recipes import Recipe, recipe, to_dict
from acil.bench.training.settings import changed, parse_value
from acil.core.classifier import ACILClassifier
from acil.core.files.writing import locked
from acil.core.inputs import resolve_device
from acil.encoders.images.backbones import build, load_backbone, save_backbone
from acil.encoders.images.cache import FeatureCache
from acil.encoders.images.extract import FeatureExtractor
from acil.errors import ACILError, InputError, ModelFileError

#: The recipe as it is, to which the others are compared.
REFERENCE = "reference"
#: γ relative to trace(gram)/d, each tried for each candidate.
GAMMAS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
#: Share of the images of each class that is held out.
_HELD_OUT = 0.1
#: Phases in which the classes outside a split's base arrive.
_PHASES = 5
#: Splits 0 and 1 take half of the classes as their base, 2 and 3 four fifths, 4 and 5 half again …
_SHARES = (0.5, 0.5, 0.8, 0.8)
#: Changes that are worth a look for any images, tried unless the user names others.
DEFAULTS: dict[str, dict[str, Any]] = {
    "rotation": {"training.auxiliary.copies": 1},
    "rotation and mixup": {"training.auxiliary.copies": 1, "training.auxiliary.mixup": 0.5},
    "no mirror images": {"features.mirror": False},
    "mirror images": {"features.mirror": True},
    "standardized": {"features.standardize": True},
}


@dataclass(frozen=True, eq=False)
class Split:
    """The base classes' training images, divided for one trial."""

    number: int
    #: Places in the split's own order of classes, (n,).
    labels: Tensor
    #: Which images no network and no head sees, (n,).
    held_out: Tensor
    #: Classes seen after each phase; the first is the size of the split's base.
    ends: tuple[int, ...]

    @property
    def trained(self) -> Tensor:
        """Which images the network of the split is trained on."""
        return (self.labels < self.ends[0]) & ~self.held_out


def make_split(labels: Tensor, n_classes: int, number: int, base: int | None = None) -> Split:
    """Divide images by class and by chance; the number alone decides how.

    Labels are 0 … n_classes - 1, each at least twice. Of each class a share of the images is held out,
    at least one. ``base`` is the size of the split's own base, by default half of the classes or four
    fifths, by the number.
    """
    if base is None:
        base = round(n_classes * _SHARES[number % len(_SHARES)])
        if base < 2 or base == n_classes:
            raise InputError(f"{n_classes} base classes are too few to choose by: take at least four.")
    elif not 2 <= base < n_classes:
        raise InputError(f"A split's base has from 2 to {n_classes - 1} classes. Got {base}.")
    rest = n_classes - base
    steps = min(_PHASES, rest)
    ends = (base, *(base + rest * (step + 1) // steps for step in range(steps)))
    places = torch.randperm(n_classes, generator=torch.Generator().manual_seed(number))[labels]
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    generator = torch.Generator().manual_seed(100 + number)
    for place in range(n_classes):
        members = torch.nonzero(places == place).flatten()
        if len(members) < 2:
            raise InputError("Each class needs at least two training images, one of them to hold out.")
        count = min(len(members) - 1, max(1, round(_HELD_OUT * len(members))))
        held_out[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return Split(number, places, held_out, ends)


@dataclass
class Search:
    """A search in a folder: networks, records, and what is still to do.

    Several processes may work in one folder at a time: each takes networks that nobody is at.
    """

    folder: Path
    dataset: str
    #: What candidates change; None is the data set's own.
    recipe: str | None = None
    #: Values that differ from the recipe in all candidates and in the reference; ``data.NAME`` is an
    #: option of the data set.
    changes: Mapping[str, Any] = field(default_factory=dict)
    #: Name to changes by dotted key, such as ``{"training.auxiliary.copies": 1}``.
    candidates: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: DEFAULTS)
    splits: tuple[int, ...] = (0, 1, 2, 3)
    #: Relative to trace(gram)/d.
    gammas: tuple[float, ...] = GAMMAS
    order: str = "natural"
    #: Classes of the base phase, the only ones that are looked at; None is the data set's default.
    base: int | None = None
    #: Classes of a split's own base; None is half of them or four fifths.
    split_base: int | None = None
    device: str = "auto"
    root: str | None = None

    def __post_init__(self) -> None:
        if REFERENCE in self.candidates:
            raise InputError(f"{REFERENCE!r} is the recipe as it is. Give the candidate another name.")
        if not self.splits or min(self.splits) < 0 or len(set(self.splits)) != len(self.splits):
            raise InputError(f"Splits are different whole numbers from 0. Got {self.splits}.")
        if not self.gammas or not all(0 < gamma < math.inf for gamma in self.gammas):
            raise InputError(f"Each γ must be positive, relative to trace(gram)/d. Got {self.gammas}.")
        if len({f"{gamma:g}" for gamma in self.gammas}) != len(self.gammas):
            raise InputError(f"Values of γ must differ in their first six digits. Got {self.gammas}.")
        if any("gamma" in changes for changes in (self.changes, *self.candidates.values())):
            raise InputError("γ is chosen among those of --gammas, for each candidate. Leave out gamma.")
        data_changes = {name: value for name, value in self.changes.items() if name.startswith("data.")}
        options = {
            name.removeprefix("data."): parse_value(value) for name, value in data_changes.items()
        }
        data = load(self.dataset, self.root, **options)
        base = data.default_base if self.base is None else self.base
        order = class_order(self.order, len(data.class_names))
        if not 1 <= base <= len(order):
            raise InputError(f"The base must have from 1 to {len(order)} classes. Got {base}.")
        # From here on there are neither test images nor new classes.
        base_data = restrict(data, order[:base])
        self.images, self.labels, self.n_classes = base_data.train, base_data.train_labels, base
        self.class_names = base_data.class_names
        if not self.images.has_pixels:
            raise InputError("A recipe is chosen by training networks, and this data set has no images.")
        shared = {name: value for name, value in self.changes.items() if name not in data_changes}
        reference = changed(recipe(self.recipe or data.default_recipe), shared)
        self.recipes = {REFERENCE: reference}
        for name, changes in self.candidates.items():
            self.recipes[name] = changed(reference, changes)
        self.torch_device = resolve_device(self.device, "float64")
        for chosen in self.recipes.values():
            # One image through each network: what does not fit is reported before anything is trained.
            backbone = build(chosen.backbone, **dict(chosen.backbone_options))
            extractor = FeatureExtractor(backbone, chosen.features, self.torch_device, batch_size=1)
            extractor.features(self.images.subset(torch.tensor([0])))
        self.records = Records(self.folder / "choice.jsonl")
        self.split = cache(lambda number: make_split(self.labels, base, number, self.split_base))
        self.split(self.splits[0])  # whether the classes are enough

    def plan(self) -> str:
        """Return what is still to be trained, in words."""
        done = {(record["candidate"], record["split"]) for record in self._found()}
        inputs: dict[str, int] = {}
        for key, (chosen, names) in self._networks().items():
            for number in self.splits:
                remaining = [name for name in names if (name, number) not in done]
                inputs |= {name: inputs.get(name, 0) for name in remaining}
                if remaining and not self._stored(key, number).exists():
                    # The other candidates share its network.
                    inputs[remaining[0]] += self._inputs(chosen, number)
        waiting = [name for name in self.recipes if name in inputs]
        finished = [name for name in self.recipes if name not in inputs]
        lines = [f"  {name}: {inputs[name] / 1e6:.3g} million network inputs" for name in waiting]
        head = (
            f"{len(self.images)} training images of {self.n_classes} base classes, splits "
            f"{', '.join(map(str, self.splits))}; {sum(inputs.values()) / 1e6:.3g} million "
            "network inputs in all" + (f"; done: {', '.join(finished)}" if finished else "")
        )
        return "\n".join([head, *lines])

    def run(self, progress: ProgressListener | None = None) -> None:
        """Do what is not recorded yet, except what other processes are at.

        ``progress`` is told how far a training is, see :func:`acil.bench.training.loop.train`. If
        candidates failed, which does not stop the others, a `RunFailedError` is raised in the end.
        """
        made(self.folder)
        self.failures: list[str] = []
        environment = environment_record(self.torch_device)
        if environment not in self.records.read():
            self.records.append(environment)
        for key, (chosen, names) in self._networks().items():
            for number in self.splits:
                stored = self._stored(key, number)
                made(stored.parent)
                with ExitStack() as lock:
                    try:
                        lock.enter_context(locked(stored, timeout=0))
                    except ModelFileError:
                        continue  # another process is at it
                    self._evaluate(self.split(number), chosen, names, stored, progress)
        if self.failures:
            shown = " ".join(self.failures)
            raise RunFailedError(f"Some candidates failed; what the others gave is recorded. {shown}")

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a candidate, the reference first: means over splits and the paired difference.

        Each is judged at its best γ of those tried, the same for all its splits. ``difference`` and its
        ``error``, the standard error over the splits, are to the reference on the same splits.
        """
        by_candidate: dict[str, dict[int, dict[str, Any]]] = {}
        for record in self._found():
            by_candidate.setdefault(record["candidate"], {})[record["split"]] = record
        reference = by_candidate.get(REFERENCE, {})
        return [
            _row(name, by_candidate[name], reference) for name in self.recipes if name in by_candidate
        ]

    def _found(self) -> list[dict[str, Any]]:
        """Return what is recorded of these candidates; their names may have stood for others."""
        mine = {name: self._identity(chosen) for name, chosen in self.recipes.items()}
        choices = [record for record in self.records.read() if record["kind"] == "choice"]
        return [record for record in choices if record["identity"] == mine.get(record["candidate"])]

    def _stored(self, key: str, number: int) -> Path:
        """Return the file of a split's network."""
        return self.folder / "networks" / f"{key}-{number}" / "network.safetensors"

    def _networks(self) -> dict[str, tuple[Recipe, list[str]]]:
        """Return the key of each network to train, its recipe, and the candidates that share it."""
        networks: dict[str, tuple[Recipe, list[str]]] = {}
        for name, chosen in self.recipes.items():
            values = to_dict(chosen)
            key = self._hash([values[part] for part in ("backbone", "backbone_options", "training")])
            networks.setdefault(key, (chosen, []))[1].append(name)
        return networks

    def _evaluate(
        self,
        split: Split,
        chosen: Recipe,
        names: Sequence[str],
        stored: Path,
        progress: ProgressListener | None,
    ) -> None:
        done = {record["candidate"] for record in self._found() if record["split"] == split.number}
        waiting = [name for name in names if name not in done]
        if not waiting:
            return
        started = time.perf_counter()
        if not stored.exists():
            with self._noting_failure(waiting, split):
                self._train(chosen, split, stored, progress)
        if not stored.exists():
            return
        seconds = time.perf_counter() - started
        # What is judged is what is stored, weights in float16.
        backbone, cache = load_backbone(stored, device=self.torch_device)[0], FeatureCache(None)
        for name in waiting:
            judged = self.recipes[name]
            extractor = FeatureExtractor(backbone, judged.features, self.torch_device, cache=cache)
            with self._noting_failure([name], split):
                accuracies = self._accuracies(extractor, split, judged)
                self.records.append(
                    {
                        "kind": "choice",
                        "dataset": dataset_name(self.dataset),
                        "order": canonical_order(self.order),
                        "recipe": chosen.name,
                        "candidate": name,
                        "changes": {**self.changes, **self.candidates.get(name, {})},
                        "identity": self._identity(judged),
                        "base": self.n_classes,
                        "split": split.number,
                        "ends": list(split.ends),
                        "accuracy": accuracies,
                        "network": f"{stored.parent.name}/{stored.name}",
                        "network_inputs": self._inputs(chosen, split.number),
                        "training_seconds": round(seconds, 1),
                    }
                )

    @contextmanager
    def _noting_failure(self, names: Sequence[str], split: Split) -> Iterator[None]:
        """Note what goes wrong with some candidates; a file that cannot be written stops all."""
        try:
            yield
        except ModelFileError:
            raise
        except ACILError as error:
            self.failures.append(f"[{', '.join(names)}, split {split.number}] {error}")

    def _accuracies(
        self, extractor: FeatureExtractor, split: Split, judged: Recipe
    ) -> dict[str, list[float]]:
        features, rows = extractor.features(self.images), extractor.training_rows(self.images)
        if judged.features.standardize:
            standardize = Standardize.fitted(features[split.trained])
            features, rows = standardize(features), [standardize(view) for view in rows]
        head = ACILClassifier(
            expansion_size=judged.expansion_size,
            gamma=1.0,
            scores="ridge",
            dtype=judged.dtype,
            device=str(self.torch_device),
        )
        return curves(features, rows, split, head, self.gammas)

    def _train(
        self, chosen: Recipe, split: Split, stored: Path, progress: ProgressListener | None
    ) -> None:
        generator = torch.Generator().manual_seed(split.number)
        backbone = build(chosen.backbone, generator, **dict(chosen.backbone_options))
        network = Network(backbone, split.ends[0], generator=generator)
        use = torch.nonzero(split.trained).flatten()
        checkpoint = Checkpoint(stored.parent, other="restart")
        train(
            network,
            self.images.subset(use).pixels(),
            split.labels[use],
            chosen.training,
            preprocessing=backbone.preprocessing,
            seed=split.number,
            device=self.torch_device,
            checkpoint=checkpoint,
            progress=progress,
        )
        facts = {
            "dataset": dataset_name(self.dataset),
            "order": canonical_order(self.order),
            "trained_on": [self.class_names[c] for c in sorted({*self.labels[use].tolist()})],
            "split": split.number,
            "base_classes": split.ends[0],
            "recipe": chosen.name,
        }
        save_backbone(network.backbone, stored, {**facts, "training": to_dict(chosen)}, half=True)
        checkpoint.remove()

    def _inputs(self, chosen: Recipe, number: int) -> int:
        return int(self.split(number).trained.sum()) * chosen.training.inputs_per_image

    def _identity(self, chosen: Recipe) -> str:
        """Tell apart what the same name may stand for in one folder."""
        return self._hash([list(self.gammas), {**to_dict(chosen), "name": "", "gamma": 0}])

    def _hash(self, values: list[Any]) -> str:
        order = canonical_order(self.order)
        sizes = [] if self.split_base is None else [self.split_base]
        return digest([self.images.identity, order, self.n_classes, *sizes, _HELD_OUT, *values])[:12]


def curves(
    features: Tensor,
    rows: Sequence[Tensor],
    split: Split,
    head: ACILClassifier,
    gammas: Sequence[float],
) -> dict[str, list[float]]:
    """Return the accuracy on held-out images after each phase, in percent, for each γ.

    Features have shape (n, d), and so have the rows of each view that the head, a new one, learns; γ is
    relative to trace(gram)/d of the phase.
    """
    by_gamma: dict[str, list[float]] = {f"{gamma:g}": [] for gamma in gammas}
    seen = 0
    for end in split.ends:
        new = (split.labels >= seen) & (split.labels < end) & ~split.held_out
        for view in rows:
            head.partial_fit(view[new], split.labels[new])
        seen = end
        judged = (split.labels < end) & split.held_out
        for gamma, accuracies in zip(gammas, by_gamma.values(), strict=True):
            head.set_gamma(gamma, relative=True)
            predictions = head.predict(features[judged]).cpu()
            accuracies.append(round(accuracy(predictions, split.labels[judged]), 4))
    return by_gamma


def _row(
    name: str, by_split: Mapping[int, Mapping[str, Any]], reference: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    gamma = _best_gamma([*by_split.values()])
    mean = {split: fmean(record["accuracy"][gamma]) for split, record in by_split.items()}
    row = {
        "candidate": name,
        "splits": sorted(by_split),
        "gamma": float(gamma),
        "average": fmean(mean.values()),
        "last": fmean(record["accuracy"][gamma][-1] for record in by_split.values()),
        "network_inputs": sum(record["network_inputs"] for record in by_split.values()),
    }
    shared = sorted(set(by_split) & set(reference))
    if shared and name != REFERENCE:
        theirs = _best_gamma([reference[split] for split in shared])
        pairs = [mean[split] - fmean(reference[split]["accuracy"][theirs]) for split in shared]
        row["difference"] = fmean(pairs)
        row["error"] = stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
    return row


def _best_gamma(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the γ with the highest mean over some records."""
    tried: dict[str, list[float]] = records[0]["accuracy"]
    return max(tried, key=lambda gamma: fmean(fmean(record["accuracy"][gamma]) for record in records))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table; an asterisk marks gains beyond two standard errors."""
    lines = [
        "| candidate | splits | γ | pseudo-Ā | last | difference | million inputs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        difference, error = row.get("difference"), row.get("error")
        told = "" if difference is None else f"{difference:+.2f}"
        if error is not None:
            told += f" ± {error:.2f}" + " *" * (row["difference"] > 2 * error)
        lines.append(
            f"| {row['candidate']} | {', '.join(map(str, row['splits']))} | {row['gamma']:g} | "
            f"{row['average']:.2f} | {row['last']:.2f} | {told} | {row['network_inputs'] / 1e6:.3g} |"
        )
    return "\n".join(lines)
