"""Choosing a recipe without a look at test images: class-incremental learning inside the base classes.

Only training images of the base classes are used. Each split draws a part of these classes as a base of
its own (half of them or four fifths); the others arrive in five phases. A tenth of the images of each
class is held out: no network and no head sees them, and accuracy is counted on them alone. A candidate
is a recipe with some values changed; it is judged by the mean accuracy over the phases (pseudo-Ā), next
to the unchanged recipe on the same splits.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from acil.benchmark.datasets import load, restrict
from acil.benchmark.orders import canonical_order, class_order
from acil.benchmark.prepare import dataset_name
from acil.benchmark.records import Records
from acil.benchmark.rundir import environment_record
from acil.errors import InputError, ModelFileError
from acil.methods.frozen_features import Standardize
from acil.modelfile.writing import cannot_write, locked
from acil.training.checkpoint import Checkpoint
from acil.training.loop import train
from acil.training.network import Network
from acil.training.recipes import Recipe, override, recipe, to_dict
from acil.validation import resolve_device
from acil.vision.backbones import Backbone, build, load_backbone, save_backbone
from acil.vision.extract import FeatureExtractor

#: The recipe as it is, to which the others are compared.
REFERENCE = "reference"
#: γ relative to trace(gram)/d, each tried for each candidate.
GAMMAS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
#: Phases in which the classes outside a split's base arrive.
PHASES = 5
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
#: Rows that are expanded together.
_ROWS = 4096


@dataclass(frozen=True)
class Choice:
    """What a search is told.

    Attributes
    ----------
    dataset : str
    recipe : str or None
        What candidates change; None is the data set's own.
    changes : Mapping
        Values that differ from the recipe in all candidates and in the reference.
    candidates : Mapping of str to Mapping
        Name to changes by dotted key, such as ``{"training.auxiliary.copies": 1}``.
    splits : tuple of int
    gammas : tuple of float
        Relative to trace(gram)/d.
    held_out : float
        Share of the images of each class.
    order : str
    base : int or None
        Classes of the base phase, the only ones that are looked at; None is the data set's default.
    device : str
    root : str or None
    data : Mapping
        Options of the data set.
    """

    dataset: str
    recipe: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    candidates: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: DEFAULTS)
    splits: tuple[int, ...] = (0, 1, 2, 3)
    gammas: tuple[float, ...] = GAMMAS
    held_out: float = 0.1
    order: str = "natural"
    base: int | None = None
    device: str = "auto"
    root: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if REFERENCE in self.candidates:
            raise InputError(f"{REFERENCE!r} is the recipe as it is. Give the candidate another name.")
        if not self.splits or min(self.splits) < 0 or len(set(self.splits)) != len(self.splits):
            raise InputError(f"Splits are different whole numbers from 0. Got {self.splits}.")
        if not self.gammas or not all(0 < gamma < math.inf for gamma in self.gammas):
            raise InputError(f"Each γ must be positive, relative to trace(gram)/d. Got {self.gammas}.")
        if not 0 < self.held_out < 1:
            raise InputError(f"The held-out share must lie between 0 and 1. Got {self.held_out}.")


@dataclass(frozen=True, eq=False)
class Split:
    """The base classes' training images, divided for one trial.

    Attributes
    ----------
    number : int
    labels : Tensor of shape (n,), int64
        Places in the split's own order of classes.
    held_out : Tensor of shape (n,), bool
    ends : tuple of int
        Classes seen after each phase; the first is the size of the split's base.
    """

    number: int
    labels: Tensor
    held_out: Tensor
    ends: tuple[int, ...]


def make_split(labels: Tensor, n_classes: int, number: int, share: float) -> Split:
    """Divide images by class and by chance; the number alone decides how.

    Parameters
    ----------
    labels : Tensor of shape (n,), int64
        0 … n_classes - 1, each at least twice.
    n_classes : int
    number : int
    share : float
        Of the images of each class, held out; at least one image.
    """
    base = round(n_classes * _SHARES[number % len(_SHARES)])
    rest = n_classes - base
    if base < 2 or rest < 1:
        raise InputError(f"{n_classes} base classes are too few to choose by: take at least four.")
    steps = min(PHASES, rest)
    ends = (base, *(base + rest * (step + 1) // steps for step in range(steps)))
    places = torch.randperm(n_classes, generator=torch.Generator().manual_seed(number))[labels]
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    generator = torch.Generator().manual_seed(100 + number)
    for place in range(n_classes):
        members = torch.nonzero(places == place).flatten()
        if len(members) < 2:
            raise InputError("Each class needs at least two training images, one of them to hold out.")
        count = min(len(members) - 1, max(1, round(share * len(members))))
        held_out[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return Split(number, places, held_out, ends)


class Search:
    """A search in a folder: networks, records, and what is still to do.

    Several processes may work in one folder at a time: each takes networks that nobody is at.

    Parameters
    ----------
    choice : Choice
    folder : Path
    """

    def __init__(self, choice: Choice, folder: Path) -> None:
        self.choice = choice
        self.folder = folder
        data = load(choice.dataset, choice.root, **choice.data)
        base = data.default_base if choice.base is None else choice.base
        order = class_order(choice.order, len(data.class_names))
        if not 1 <= base <= len(order):
            raise InputError(f"The base must have from 1 to {len(order)} classes. Got {base}.")
        # From here on there are neither test images nor new classes.
        kept = restrict(data, order[:base])
        self.images, self.labels, self.n_classes = kept.train, kept.train_labels, base
        if not self.images.has_pixels:
            raise InputError("A recipe is chosen by training networks, and this data set has no images.")
        reference = override(recipe(choice.recipe or data.default_recipe), choice.changes)
        self.recipes = {REFERENCE: reference}
        for name, changes in choice.candidates.items():
            self.recipes[name] = override(reference, changes)
        self.device = resolve_device(choice.device, "float64")
        self.records = Records(folder / "choice.jsonl")
        self._splits: dict[int, Split] = {}

    def plan(self) -> str:
        """Return what is to be trained, in words."""
        lines, total = [], 0.0
        trained: set[str] = set()
        for name, chosen in self.recipes.items():
            key = self._network_key(chosen)
            inputs = 0 if key in trained else sum(self._inputs(chosen, n) for n in self.choice.splits)
            trained.add(key)
            total += inputs
            lines.append(f"  {name}: {inputs / 1e6:.3g} million network inputs")
        head = (
            f"{len(self.images)} training images of {self.n_classes} base classes, splits "
            f"{', '.join(map(str, self.choice.splits))}; {total / 1e6:.3g} million network inputs in all"
        )
        return "\n".join([head, *lines])

    def run(self, progress: Callable[[Any], None] | None = None) -> None:
        """Do what is not recorded yet, except what other processes are at.

        Parameters
        ----------
        progress : callable, optional
            Told how far a training is, see :func:`acil.training.loop.train`.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        environment = environment_record(self.device)
        if environment not in self.records.read():
            self.records.append(environment)
        for number, chosen in self._networks():
            place = self.folder / "networks" / f"{self._network_key(chosen)}-{number}"
            place.mkdir(parents=True, exist_ok=True)
            stored = place / "network.safetensors"
            with ExitStack() as lock:
                try:
                    lock.enter_context(locked(stored, timeout=0))
                except ModelFileError:
                    continue  # another process is at it
                self._judge(number, chosen, stored, progress)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a candidate, the reference first: means over splits and the paired difference.

        Each is judged at its best γ of those tried, the same for all its splits. ``difference`` and its
        ``error``, the standard error over the splits, are to the reference on the same splits.
        """
        found: dict[str, dict[int, dict[str, Any]]] = {}
        mine = {name: self._identity(chosen) for name, chosen in self.recipes.items()}
        for record in self.records.read():
            if record["kind"] == "choice" and record["identity"] == mine.get(record["candidate"]):
                found.setdefault(record["candidate"], {})[record["split"]] = record
        return [
            _row(name, found[name], found.get(REFERENCE, {})) for name in self.recipes if name in found
        ]

    def _networks(self) -> Iterator[tuple[int, Recipe]]:
        """Yield each network to train, once for all candidates that share it."""
        seen = set()
        for chosen in self.recipes.values():
            for number in self.choice.splits:
                if (number, self._network_key(chosen)) not in seen:
                    seen.add((number, self._network_key(chosen)))
                    yield number, chosen

    def _judge(
        self, number: int, chosen: Recipe, stored: Path, progress: Callable[[Any], None] | None
    ) -> None:
        key = self._network_key(chosen)
        done = {
            (record["split"], record["candidate"], record["identity"])
            for record in self.records.read()
            if record["kind"] == "choice"
        }
        candidates = {
            name: other
            for name, other in self.recipes.items()
            if self._network_key(other) == key and (number, name, self._identity(other)) not in done
        }
        if not candidates:
            return
        split = self._split(number)
        started = time.perf_counter()
        if not stored.exists():
            self._train(chosen, split, stored, progress)
        seconds = time.perf_counter() - started
        # What is judged is what is stored, weights in float16.
        backbone = load_backbone(stored, device=self.device)[0]
        features: dict[str, Tensor] = {}
        for name, other in candidates.items():
            asked = json.dumps(to_dict(other)["features"], sort_keys=True)
            if asked not in features:
                features = {asked: self._features(backbone, other, split)}
            accuracy = curves(
                features[asked], split, other.expansion_size, self.choice.gammas, self.device
            )
            self.records.append(
                {
                    "kind": "choice",
                    "dataset": dataset_name(self.choice.dataset),
                    "order": canonical_order(self.choice.order),
                    "recipe": chosen.name,
                    "candidate": name,
                    "changes": {**self.choice.changes, **self.choice.candidates.get(name, {})},
                    "identity": self._identity(other),
                    "base": self.n_classes,
                    "split": number,
                    "ends": list(split.ends),
                    "accuracy": accuracy,
                    "network": f"{stored.parent.name}/{stored.name}",
                    "network_inputs": self._inputs(chosen, number),
                    "training_seconds": round(seconds, 1),
                }
            )

    def _train(
        self, chosen: Recipe, split: Split, stored: Path, progress: Callable[[Any], None] | None
    ) -> None:
        generator = torch.Generator().manual_seed(split.number)
        backbone = build(chosen.backbone, generator, **dict(chosen.backbone_options))
        network = Network(backbone, split.ends[0], generator=generator)
        use = torch.nonzero((split.labels < split.ends[0]) & ~split.held_out).flatten()
        checkpoint = Checkpoint(stored.parent, other="restart")
        train(
            network,
            self.images.subset(use).pixels(),
            split.labels[use],
            chosen.training,
            preprocessing=backbone.preprocessing,
            seed=split.number,
            device=self.device,
            checkpoint=checkpoint,
            progress=progress,
        )
        facts = {"split": split.number, "base_classes": split.ends[0], "recipe": chosen.name}
        save_backbone(network.backbone, stored, {**facts, "training": to_dict(chosen)}, half=True)
        checkpoint.remove()

    def _features(self, backbone: Backbone, chosen: Recipe, split: Split) -> Tensor:
        found = FeatureExtractor(backbone, chosen.features, self.device).features(self.images)
        if chosen.features.standardize:
            found = Standardize(found[(split.labels < split.ends[0]) & ~split.held_out])(found)
        return found

    def _split(self, number: int) -> Split:
        if number not in self._splits:
            self._splits[number] = make_split(self.labels, self.n_classes, number, self.choice.held_out)
        return self._splits[number]

    def _inputs(self, chosen: Recipe, number: int) -> int:
        split, training = self._split(number), chosen.training
        images = int(((split.labels < split.ends[0]) & ~split.held_out).sum())
        return images * training.epochs * training.auxiliary.inputs_per_image

    def _network_key(self, chosen: Recipe) -> str:
        """Return a hash of what decides the trained network, apart from the number of the split."""
        values = to_dict(chosen)
        return self._hash([values[name] for name in ("backbone", "backbone_options", "training")])

    def _identity(self, chosen: Recipe) -> str:
        """Tell apart what the same name may stand for in one folder."""
        return self._hash([list(self.choice.gammas), {**to_dict(chosen), "name": "", "gamma": 0}])

    def _hash(self, values: list[Any]) -> str:
        order = canonical_order(self.choice.order)
        facts = [self.images.identity, order, self.n_classes, self.choice.held_out, *values]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def curves(
    features: Tensor, split: Split, width: int | None, gammas: Sequence[float], device: torch.device
) -> dict[str, list[float]]:
    """Return the accuracy on held-out images after each phase, in percent, for each γ.

    Parameters
    ----------
    features : Tensor of shape (n, d), float32, on the CPU
    split : Split
    width : int or None
        Of the random expansion.
    gammas : sequence of float
        Relative to trace(gram)/d of the phase.
    device : torch.device

    Returns
    -------
    dict of str to list of float
    """
    generator, projection = torch.Generator().manual_seed(0), None
    if width is not None:
        projection = torch.randn(features.shape[1], width, generator=generator).to(device).double()

    def expanded(rows: Tensor) -> Tensor:
        X = features[rows].to(device).double()
        return X if projection is None else functional.relu(X @ projection)

    n_classes = split.ends[-1]
    d = features.shape[1] if width is None else width
    gram = torch.zeros(d, d, dtype=torch.float64, device=device)
    moment = torch.zeros(d, n_classes, dtype=torch.float64, device=device)
    found: dict[str, list[float]] = {f"{gamma:g}": [] for gamma in gammas}
    seen = 0
    for end in split.ends:
        new = (split.labels >= seen) & (split.labels < end) & ~split.held_out
        for rows in torch.split(torch.nonzero(new).flatten(), _ROWS):
            X = expanded(rows)
            gram.addmm_(X.mT, X)
            moment.addmm_(X.mT, functional.one_hot(split.labels[rows], n_classes).to(device).double())
        seen = end
        judged = torch.nonzero((split.labels < end) & split.held_out).flatten()
        weights = [_ridge(gram, moment[:, :end], gamma) for gamma in gammas]
        hits = torch.zeros(len(gammas), dtype=torch.int64)
        for rows in torch.split(judged, _ROWS):
            X = expanded(rows)
            for index, W in enumerate(weights):
                hits[index] += int(((X @ W).argmax(1).cpu() == split.labels[rows]).sum())
        for gamma, count in zip(found, hits.tolist(), strict=True):
            found[gamma].append(round(100 * count / len(judged), 4))
    return found


def _ridge(gram: Tensor, moment: Tensor, gamma: float) -> Tensor:
    """Return (gram + γ trace(gram)/d I)⁻¹ moment."""
    matrix = gram.clone()
    matrix.diagonal().add_(gamma * float(gram.diagonal().mean()))
    return torch.cholesky_solve(moment, torch.linalg.cholesky(matrix))


def _row(
    name: str, own: Mapping[int, Mapping[str, Any]], reference: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    gamma = _best_gamma(own.values())
    mean = {split: fmean(record["accuracy"][gamma]) for split, record in own.items()}
    row = {
        "candidate": name,
        "splits": sorted(own),
        "gamma": float(gamma),
        "average": fmean(mean.values()),
        "last": fmean(record["accuracy"][gamma][-1] for record in own.values()),
        "network_inputs": sum(record["network_inputs"] for record in own.values()),
    }
    shared = sorted(set(own) & set(reference))
    if shared and name != REFERENCE:
        theirs = _best_gamma([reference[split] for split in shared])
        pairs = [mean[split] - fmean(reference[split]["accuracy"][theirs]) for split in shared]
        row["difference"] = fmean(pairs)
        row["error"] = stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
    return row


def _best_gamma(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the γ with the highest mean over some records."""
    listed = list(records)
    tried: dict[str, list[float]] = listed[0]["accuracy"]
    return max(tried, key=lambda gamma: fmean(fmean(record["accuracy"][gamma]) for record in listed))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table; an asterisk marks gains beyond two standard errors."""
    lines = [
        "| candidate | splits | γ | pseudo-Ā | last | difference | million inputs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        difference = ""
        if "difference" in row:
            error = row["error"]
            sure = error is not None and row["difference"] > 2 * error
            known = "" if error is None else f" ± {error:.2f}"
            difference = f"{row['difference']:+.2f}{known}{' *' if sure else ''}"
        lines.append(
            f"| {row['candidate']} | {', '.join(map(str, row['splits']))} | {row['gamma']:g} | "
            f"{row['average']:.2f} | {row['last']:.2f} | {difference} | "
            f"{row['network_inputs'] / 1e6:.3g} |"
        )
    return "\n".join(lines)
