"""What models leak, and what a private release costs, on real features.

    ACIL_DATA=… python benchmarks/privacy.py features --photos PHOTOS --features FOLDER
    python benchmarks/privacy.py choice --features FOLDER --out results/privacy
    python benchmarks/privacy.py recovery --features FOLDER --out results/privacy
    python benchmarks/privacy.py frontier --features FOLDER --out results/privacy

`features` extracts CIFAR-100 through the shipped ResNet-32 networks (recipes `paper` and `strong`) and
photographs through EfficientNet-Lite0, once. `choice` chooses the constants of `private_softmax` on
public stand-ins. `recovery` attacks pairs of states and single models. `frontier` compares the accuracy
of private releases with a linear classifier trained by DP-SGD. All write records (JSON lines).
`--only NAME` restricts them to some features.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dp_accounting
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy.special import ndtri
from torch import Tensor

from acil import ACILClassifier, ImageClassifier, load, save
from acil.bench.choice import make_split
from acil.bench.datasets import Dataset
from acil.bench.datasets import load as load_data
from acil.bench.training.recipes import RECIPES
from acil.core.classifier import learnt_of
from acil.encoders.images.backbones import load_backbone
from acil.encoders.images.extract import FeatureExtractor
from acil.privacy import audit, combine, guarantee, private_softmax, privatize
from acil.privacy.recovery import backbone_features

ROOT = Path(__file__).parents[1]
DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0, 8.0, math.inf)
#: Samples between two states.
GROUPS = (1, 2, 5, 10, 15, 50, 500)
#: Classes that the networks of CIFAR-100 were trained on; the samples of all others are private.
BASE = 50
#: Stand-ins of CIFAR-100 are the base classes, seen through the network of this split of `bench choose`:
#: it knows the first 25 of them, and never saw a tenth of their images.
SPLIT, KNOWN = 0, 25
#: Widest space that softmax classifiers are trained in, ours and those of DP-SGD.
WIDEST = 512
#: Settings of DP-SGD to choose from on stand-ins; rates are relative to the number of classes.
DESCENTS = {"steps": (20, 80), "rate": (1.0, 2.5, 6.0, 15.0), "longest": (0.5, 1.0)}
#: The same of `private_softmax`, chosen as freely as those of DP-SGD.
SOFTMAXES = {"steps": (8, 16, 32, 64), "longest_error": (0.25, 0.5, 1.0)}
#: Constants of `private_softmax` with the values to choose from; the search starts from the first ones.
TRIED = {
    "_LONGEST_ERROR": (1.0, 0.7, 0.5, 0.35, 0.25),
    "_FIRST_SHARE": (0.2, 0.1, 0.05, 0.025),
    "_MOMENTUM": (0.9, 0.95, 0.8, 0.6),
    "_AVERAGED_FROM": (0.5, 0.75, 0.25, 0.0),
    "_RIDGE": (0.2, 0.4, 0.1, 0.05),
    "_RIDGE_OF_NOISE": (0.008, 0.016, 0.004, 0.002),
    "_STEPS": (8, 4, 16, 32),
}
#: Ridge of the public whitening, relative to the mean eigenvalue.
WHITENING = 0.1


def extract(folder: Path, photos: Path) -> None:
    """Write the features of all data: NAME-train, NAME-test, and photos-public, of CIFAR images."""
    folder.mkdir(parents=True, exist_ok=True)
    data = load_data("cifar100")
    for name in ("paper", "strong"):
        backbone, *_ = load_backbone(ROOT / f"results/cifar100/{name}/natural-0.safetensors")
        extractor = FeatureExtractor(backbone, RECIPES[name].features)
        for split in ("train", "test"):
            rows = extractor.features(getattr(data, split)).half()
            save_file(
                {"x": rows, "y": getattr(data, f"{split}_labels")},
                folder / f"{name}-{split}.safetensors",
            )
        backbone, *_ = load_backbone(
            ROOT / f"results/cifar100/strong/choice/authors-{SPLIT}.safetensors"
        )
        content = base_classes(data, FeatureExtractor(backbone, RECIPES[name].features))
        save_file(content, folder / f"{name}-stand-in.safetensors")
    model = ImageClassifier()
    for split in ("train", "test"):
        samples = model.prepare(photos / split)
        labels = np.unique(samples.labels, return_inverse=True)[1]
        content = {"x": torch.from_numpy(samples.features), "y": torch.from_numpy(labels)}
        save_file(content, folder / f"photos-{split}.safetensors")
    chosen = torch.cat([torch.nonzero(data.train_labels == c).flatten()[:40] for c in range(25)])
    pictures = []
    for pixels in data.train.subset(chosen).pixels():
        memory = io.BytesIO()
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(memory, "PNG")
        pictures.append(memory.getvalue())
    samples = model.prepare(pictures, [f"{int(c):02}" for c in data.train_labels[chosen]])
    content = {"x": torch.from_numpy(samples.features), "y": data.train_labels[chosen]}
    save_file(content, folder / "photos-public.safetensors")


def base_classes(data: Dataset, extractor: FeatureExtractor) -> dict[str, Tensor]:
    """Return the training images of the base classes, and which of them were held out."""
    rows = torch.nonzero(data.train_labels < BASE).flatten()
    split = make_split(data.train_labels[rows], BASE, SPLIT)
    x = extractor.features(data.train.subset(rows)).half()
    return {"x": x, "y": split.labels, "held_out": split.held_out}


@dataclass(frozen=True)
class Split:
    """Rows with labels 0 … n_classes − 1."""

    x: Tensor
    y: Tensor

    @classmethod
    def read(cls, path: Path) -> Split:
        """Read a file of `extract`."""
        content = load_file(path)
        return cls(content["x"].float(), content["y"].long())

    def where(self, mask: Tensor) -> Split:
        """Return some of the rows."""
        return Split(self.x[mask], self.y[mask])

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Split:
        """Return changed rows."""
        return Split(change(self.x), self.y)


# --- recovery -----------------------------------------------------------------------------------------


def recovery(folder: Path, only: list[str]) -> Iterator[dict[str, Any]]:
    """Attack pairs of states; the base is learnt first, then groups of samples of other classes."""
    for name, widths in (("paper", (2048, None)), ("photos", (None, 2048))):
        if name in only:
            train, test = (Split.read(folder / f"{name}-{s}.safetensors") for s in ("train", "test"))
            for width in widths:
                for solver in ("gram", "recursive"):
                    for dtype in ("float64", "float32"):
                        yield from groups(name, train, width, solver, dtype)
            yield from memberships(name, train, test)


def groups(
    name: str, train: Split, width: int | None, solver: str, dtype: str
) -> Iterator[dict[str, Any]]:
    """Learn the base, then one group after the other, and attack each pair of consecutive states."""
    base = int(train.y.max() + 1) // 2
    first, rest = train.where(train.y < base), train.where(train.y >= base)
    first = Split(first.x[:: 1 + len(first.y) // 5000], first.y[:: 1 + len(first.y) // 5000])
    order = torch.randperm(len(rest.y), generator=torch.Generator().manual_seed(0))
    X, y = rest.x[order].numpy(), rest.y[order].numpy()
    clf = ACILClassifier(
        scores="ridge", expansion_size=width, gamma=1.0, solver=solver, dtype=dtype, device="cpu"
    )
    # γ that float32 allows: largest eigenvalue / 5e4, which the trace bounds
    length = first.x.square().sum(dim=1).double().mean() * (1 if width is None else width / 2)
    clf.set_params(gamma=float(len(first.y) * length / 5e4))
    clf.fit(first.x.numpy(), first.y.numpy())
    with tempfile.TemporaryDirectory() as place:
        start = 0
        for k in GROUPS:
            # The last group takes long, and the other settings stop before it.
            if start + k > len(y) or (k > 50 and (solver, dtype) != ("gram", "float64")):
                break
            save(clf, Path(place) / "before.acil")
            clf.partial_fit(X[start : start + k], y[start : start + k])
            found = audit(clf, load(Path(place) / "before.acil"), features=X[start : start + k])
            start += k
            close = [cosine for cosine in found.cosines if cosine >= 0.999]
            record = {"kind": "recovery", "features": name, "width": width, "solver": solver}
            record |= {"dtype": dtype, "learnt": found.learnt, "rank": found.rank}
            record |= {
                "recovered": found.recovered,
                "true": len(close),
                "cosine": np.mean(found.cosines),
            }
            yield record


def memberships(name: str, train: Split, test: Split) -> Iterator[dict[str, Any]]:
    """Tell samples learnt from others of the same classes, which the network has never seen."""
    pool = Split(torch.cat([train.x, test.x]), torch.cat([train.y, test.y]))
    if name != "photos":
        pool = train.where(train.y >= BASE)
    order = torch.randperm(len(pool.y), generator=torch.Generator().manual_seed(1))
    X, y = pool.x[order].numpy(), pool.y[order].numpy()
    for width in (None, 512):
        norm = float(pool.x.norm(dim=1).median()) * (1 if width is None else math.sqrt(width / 2))
        for n in (300,) if name == "photos" else (400, 2000, 20_000):
            settings = {"expansion_size": width, "gamma": 1.0, "clip_norm": norm, "device": "cpu"}
            clf = ACILClassifier(scores="ridge", **settings).fit(X[:n], y[:n])
            # Ten of each: one draw of the noise says little. Copies do not remember releases.
            models = {
                "plain": [clf],
                "ε = 1": (privatize(clf.copy(), 1.0, DELTA) for _ in range(10)),
                "ε = 1, softmax": (
                    private_softmax(clf.copy(), X[:n], y[:n], 1.0, DELTA) for _ in range(10)
                ),
            }
            truth = {"features": X[: min(n, 4000)], "labels": y[: min(n, 4000)]}
            truth |= {"others": X[n : n + 4000], "other_labels": y[n : n + 4000]}
            for kind, drawn in models.items():
                found, scores = [], []
                for model in drawn:
                    found.append(audit(model, **truth))
                    scores.append(100 * model.score(truth["others"], truth["other_labels"]))
                record = {"kind": "membership", "features": name, "width": width, "samples": n}
                record |= {"model": kind, "recovered": sum(one.recovered for one in found)}
                record |= {"accuracy": np.mean(scores)}
                yield record | {
                    f"{way}_{fact}": np.mean([getattr(one.membership[way], fact) for one in found])
                    for way in found[0].membership
                    for fact in ("area", "found")
                }


def picture(train: Split, path: Path) -> None:
    """Draw features of the backbone as they are, and as they were recovered from two states."""
    from matplotlib.figure import Figure

    first, rest = train.where(train.y < BASE), train.where(train.y >= BASE)
    before = ACILClassifier(scores="ridge", expansion_size=2048, gamma=1e3, device="cpu")
    before.fit(first.x[::5].numpy(), first.y[::5].numpy())
    truth = rest.x[:: len(rest.y) // 10][:10].double()
    after = before.copy().partial_fit(truth.numpy(), rest.y[:: len(rest.y) // 10][:10].numpy())
    found = audit(after, before)
    z = backbone_features(torch.from_numpy(found.rows), learnt_of(after).model.expansion)
    normalize = torch.nn.functional.normalize
    nearest = (normalize(truth) @ normalize(z).T).argmax(dim=1)
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for axes, rows, title in ((left, truth, "true"), (middle, z[nearest], "recovered")):
        axes.imshow(rows, aspect="auto", vmin=0, vmax=float(truth.max()))
        axes.set(title=f"{title} features", xlabel="feature", ylabel="image")
    right.plot(truth.flatten(), z[nearest].flatten(), ".", markersize=2)
    right.set(title="all of them", xlabel="true", ylabel="recovered")
    figure.savefig(path, dpi=110)


# --- the frontier -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Whitening:
    """A public map of rows: centre, whiten by the scatter within public classes, scale to length 1."""

    mean: Tensor
    matrix: Tensor

    @classmethod
    def of(cls, public: Split, size: int | None = None) -> Whitening:
        """Fit the map to public rows; of more than ``size`` dimensions keep those of most variance."""
        centre, n = public.x.mean(dim=0), len(public.y)
        classes = torch.unique(public.y, return_inverse=True)[1]
        sums = torch.zeros(int(classes.max()) + 1, public.x.shape[1]).index_add_(0, classes, public.x)
        means = sums / torch.bincount(classes).unsqueeze(1)
        inner = public.x - means[classes]
        values, vectors = torch.linalg.eigh(inner.T @ inner / n)
        matrix = vectors / (values.clamp(min=0) + WHITENING * values.mean()).sqrt()
        if size is not None and size < len(values):
            spread = (public.x - centre) @ matrix
            matrix = matrix @ torch.linalg.eigh(spread.T @ spread)[1][:, -size:]
        return cls(centre, matrix)

    def __call__(self, rows: Tensor) -> Tensor:
        """Map rows of shape (n, p)."""
        return torch.nn.functional.normalize((rows - self.mean) @ self.matrix)


def spaces(name: str, public: Split, sets: list[Split]) -> Iterator[tuple[str, list[Split]]]:
    """Yield the sets in several spaces of unit rows, all made from public samples and seeds alone."""
    sizes: tuple[int, ...] = {"paper": (64,), "strong": (128, 256, 1024), "photos": (16, 64, 256, 512)}[
        name
    ]
    for size in sizes:
        white = Whitening.of(public, size)
        yield str(size), [part.mapped(white) for part in sets]
    if name == "paper":
        white = Whitening.of(public)
        for width in (1024,):
            W = torch.randn(64, width, generator=torch.Generator().manual_seed(0))
            expanded = [part.mapped(lambda x, W=W: torch.relu(white(x) @ W)) for part in (public, *sets)]
            again = Whitening.of(expanded[0])
            yield f"{width} expanded", [part.mapped(again) for part in expanded[1:]]


def discriminants(clf: ACILClassifier) -> tuple[Tensor, Tensor]:
    """Return weights and intercepts of linear discriminants, from the sums of a model."""
    sums = learnt_of(clf).model.ridge.sums
    gram = sums.gram.tril() + sums.gram.tril(-1).T
    means = sums.moment / sums.target_total
    within = gram - means @ sums.moment.T
    within.diagonal().add_(clf.gamma_)
    W = torch.linalg.solve(within, means) * float(sums.target_total.sum())
    return W, -(means * W).sum(dim=0) / 2


def learnt(train: Split, groups: list[list[int]]) -> list[ACILClassifier]:
    """Learn each group of classes as a phase of its own."""
    models = []
    for classes in groups:
        phase = train.where(torch.isin(train.y, torch.tensor(classes)))
        clf = ACILClassifier(
            scores="ridge", expansion_size=None, gamma=1e-3 * len(phase.y), clip_norm=1.0, device="cpu"
        )
        models.append(clf.fit(phase.x.numpy(), phase.y.numpy()))
    return models


def learnt_at_once(train: Split) -> ACILClassifier:
    """Learn all classes in one phase."""
    return learnt(train, [list(range(int(train.y.max()) + 1))])[0]


def together(models: list[ACILClassifier]) -> ACILClassifier:
    """Return one model that has learnt all phases at once."""
    whole = models[0].copy()
    for model in models[1:]:
        whole.merge(model)
    return whole


def released(models: list[ACILClassifier], gram: bool, epsilon: float) -> tuple[Tensor, Tensor]:
    """Release each phase, add the releases up, and return their discriminants."""
    if epsilon == math.inf and gram:
        return discriminants(together(models))
    # Without privacy and without gram: so little noise that it does not count
    budget = 1e6 if epsilon == math.inf else epsilon
    # Copies do not remember releases: each is the first one here.
    whole = combine([privatize(m.copy(), budget, DELTA, gram=gram) for m in models], disjoint=True)
    if abs((guarantee(whole) or {})["epsilon"] / budget - 1) > 1e-6:
        raise AssertionError(guarantee(whole))
    return discriminants(whole)


def gradient_descent(train: Split, epsilon: float, steps: int, rate: float, longest: float) -> Tensor:
    """Train a linear softmax classifier by DP gradient descent; the gradient of each row is clipped.

    The rate is relative to the number of classes: the more there are, the flatter is the loss.
    """
    n_classes = int(train.y.max()) + 1
    noise = 0.0
    if epsilon < math.inf:
        # Each step sees all rows: Gaussian mechanisms compose exactly.
        noise = dp_accounting.get_sigma_gaussian(epsilon, DELTA) * math.sqrt(steps)
    X = torch.cat([train.x, torch.ones(len(train.x), 1)], dim=1) / math.sqrt(2)
    W, Y = torch.zeros(X.shape[1], n_classes), torch.nn.functional.one_hot(train.y, n_classes).float()
    mean = torch.zeros_like(W)
    for step in range(steps):
        error = torch.softmax(X @ W, dim=1) - Y
        # ‖x eᵀ‖ = ‖x‖ ‖e‖
        lengths = error.norm(dim=1) * X.norm(dim=1)
        error *= (longest / lengths.clamp(min=longest)).unsqueeze(1)
        W = W - rate * n_classes / len(X) * (X.T @ error + noise * longest * torch.randn(W.shape))
        if 2 * step >= steps:
            mean += W
    # The mean of the later steps, which has less noise
    return mean / (steps - steps // 2)


def opacus_descent(train: Split, epsilon: float, steps: int, rate: float, longest: float) -> Tensor:
    """Train the same classifier with Opacus, on a tenth of the rows at each step."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    share, n_classes = 0.1, int(train.y.max()) + 1
    accountant = lambda: dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)  # noqa: E731
    event = lambda sigma: dp_accounting.SelfComposedDpEvent(  # noqa: E731
        dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(sigma)), steps
    )
    bracket = dp_accounting.ExplicitBracketInterval(0.3, 60.0)
    sigma = dp_accounting.calibrate_dp_mechanism(accountant, event, epsilon, DELTA, bracket, tol=1e-2)
    X = torch.cat([train.x, torch.ones(len(train.x), 1)], dim=1) / math.sqrt(2)
    layer = torch.nn.Linear(X.shape[1], n_classes, bias=False)
    torch.nn.init.zeros_(layer.weight)
    layer = GradSampleModule(layer)
    optimizer = DPOptimizer(
        torch.optim.SGD(layer.parameters(), lr=rate * n_classes),
        noise_multiplier=sigma,
        max_grad_norm=longest,
        expected_batch_size=int(share * len(X)),
    )
    mean = torch.zeros(n_classes, X.shape[1])
    for step in range(steps):
        rows = torch.rand(len(X)) < share
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(X[rows]), train.y[rows]).backward()
        optimizer.step()
        if 2 * step >= steps:
            mean += (
                layer.weight.detach() if hasattr(layer, "weight") else next(layer.parameters()).detach()
            )
    return mean.T / (steps - steps // 2)


def accuracy(test: Split, W: Tensor, intercept: Tensor | float = 0.0) -> float:
    """Return the share of rows whose best score is that of their class, in percent."""
    scores = test.x.to(W.dtype) @ W + intercept
    return 100 * float((scores.argmax(dim=1) == test.y).double().mean())


def with_one(test: Split) -> Split:
    """Return rows as `gradient_descent` has them."""
    return test.mapped(lambda x: torch.cat([x, torch.ones(len(x), 1)], dim=1) / math.sqrt(2))


def stand_ins(folder: Path, name: str) -> tuple[Split, list[Split]]:
    """Return public rows to whiten by, and others in two parts, to learn and to judge.

    For CIFAR-100, they are the base classes through a network that was trained on half of these, and
    what it never saw of each is to judge. For photographs, they are images of CIFAR-100, ten of each
    class to judge.
    """
    if name == "photos":
        public = Split.read(folder / "photos-public.safetensors")
        some = public.where(public.y < 10)
        judge = torch.arange(len(some.y)) % 40 >= 30
        return public.where(public.y >= 10), [some.where(~judge), some.where(judge)]
    file = folder / f"{name}-stand-in.safetensors"
    some, judge = Split.read(file), load_file(file)["held_out"]
    return some.where((some.y < KNOWN) & ~judge), [some.where(~judge), some.where(judge)]


def frontier(folder: Path, only: list[str], with_opacus: bool) -> Iterator[dict[str, Any]]:
    """Measure every form on test samples, and on public samples that stand in for private ones."""
    for name in only:
        train, test = (Split.read(folder / f"{name}-{split}.safetensors") for split in ("train", "test"))
        others, some = stand_ins(folder, name)
        public = train.where(train.y < BASE)  # which the network was trained on
        if name == "photos":
            public = Split.read(folder / "photos-public.safetensors")
        chosen = spaces(name, others, some)
        final = spaces(name, public, [train, test])
        repeats = 10 if name == "photos" else 2
        for (space, trials), (_, sets) in zip(chosen, final, strict=True):
            common = {"kind": "frontier", "features": name, "space": space}
            for record in chain(
                forms(*sets, *trials, repeats),
                softmaxes(*sets, *trials, repeats),
                rivals(*sets, *trials, repeats, with_opacus),
            ):
                yield common | record


def in_phases(train: Split) -> dict[int, list[ACILClassifier]]:
    """Return the models of all phases, by K: all classes at once, or half of them first."""
    n = int(train.y.max()) + 1
    increments = np.array_split(np.arange(n // 2, n), 5)
    phases = learnt(train, [list(range(n // 2)), *(part.tolist() for part in increments)])
    return {1: [together(phases)], 5: phases}


def forms(
    train: Split, test: Split, trial: Split, judge: Split, repeats: int
) -> Iterator[dict[str, Any]]:
    """Yield the accuracy of releases, with and without gram, in one phase and in six (K = 5)."""
    phases, stand_ins = in_phases(train), in_phases(trial)
    for gram in (False, True) if train.x.shape[1] <= 256 else (False,):
        for epsilon in EPSILONS:
            for K in (1, 5):
                found, judged = (
                    [accuracy(rows, *released(models[K], gram, epsilon)) for _ in range(repeats)]
                    for rows, models in ((test, phases), (judge, stand_ins))
                )
                record = {"form": "sums and gram" if gram else "class sums", "phases": K}
                record |= {"epsilon": epsilon, "stand_in": np.mean(judged)}
                yield record | {"accuracy": np.mean(found), "deviation": np.std(found)}


def softmaxes(
    train: Split, test: Split, trial: Split, judge: Split, repeats: int
) -> Iterator[dict[str, Any]]:
    """Yield the accuracy of private softmax classifiers, with the settings that are best on stand-ins.

    They see all samples at once (K = 1).
    """
    if train.x.shape[1] > WIDEST:
        return
    final, first = learnt_at_once(train), learnt_at_once(trial)
    for epsilon in EPSILONS:
        scores = {}
        for values in product(*SOFTMAXES.values()):
            given = dict(zip(SOFTMAXES, values, strict=True))
            draws = [private_weights(trial, first, epsilon, **given) for _ in range(repeats)]
            scores[values] = np.mean([accuracy(judge, W) for W in draws])
        best_one = max(scores, key=lambda key: scores[key])
        given = dict(zip(SOFTMAXES, best_one, strict=True))
        found = [
            accuracy(test, private_weights(train, final, epsilon, **given))
            for _ in range(max(repeats, 3))
        ]
        record = {"form": "softmax", "phases": 1, "epsilon": epsilon, **given}
        record |= {"stand_in": scores[best_one]}
        yield record | {"accuracy": np.mean(found), "deviation": np.std(found)}


def private_weights(rows: Split, clf: ACILClassifier, epsilon: float, **given: Any) -> Tensor:
    """Return the weights of a private softmax classifier of all samples of a model."""
    # Without privacy: so little noise that it does not count. Copies do not remember releases.
    budget = 1e6 if epsilon == math.inf else epsilon
    made = private_softmax(clf.copy(), rows.x.numpy(), rows.y.numpy(), budget, DELTA, **given)
    return learnt_of(made).model.weights().coef


def rivals(
    train: Split, test: Split, trial: Split, judge: Split, repeats: int, with_opacus: bool
) -> Iterator[dict[str, Any]]:
    """Yield the accuracy of DP-SGD, with the settings that are best on the stand-ins."""
    if train.x.shape[1] > WIDEST:
        return

    def found(rows: Split, seen: Split, epsilon: float, given: tuple[Any, ...], n: int) -> list[float]:
        return [accuracy(with_one(seen), gradient_descent(rows, epsilon, *given)) for _ in range(n)]

    for epsilon in EPSILONS:
        scores = {
            given: np.mean(found(trial, judge, epsilon, given, repeats))
            for given in product(*DESCENTS.values())
        }
        given = max(scores, key=lambda key: scores[key])
        final = found(train, test, epsilon, given, max(repeats, 3))
        record = {"form": "DP-SGD", "phases": 1, "epsilon": epsilon}
        record |= dict(zip(DESCENTS, given, strict=True)) | {"stand_in": scores[given]}
        yield record | {"accuracy": np.mean(final), "deviation": np.std(final)}
        if with_opacus and epsilon in (1.0, 8.0) and train.x.shape[1] <= 64:
            W = opacus_descent(train, epsilon, *given)
            record |= {"form": "DP-SGD, Opacus", "stand_in": None}
            yield record | {"accuracy": accuracy(with_one(test), W)}


def choice(folder: Path, only: list[str]) -> Iterator[dict[str, Any]]:
    """Choose the constants of `private_softmax` on stand-ins, which are public; yield all tried.

    One constant after the other takes the value of the highest mean accuracy over all features and
    ε. Values within one standard error of it are as good: of those the one that stands is kept, and of
    steps the fewest are taken. This is repeated until nothing changes, at most three times.
    """
    trials = {}
    for name in only:
        others, some = stand_ins(folder, name)
        pairs = [pair for _, pair in spaces(name, others, some)]
        trials[name] = [(*pair, learnt_at_once(pair[0])) for pair in pairs if pair[0].x.shape[1] <= 256]
    known: dict[tuple[float, ...], tuple[float, float]] = {}
    chosen = {name: values[0] for name, values in TRIED.items()}
    for _ in range(3):
        before = dict(chosen)
        for name, values in TRIED.items():
            for value in values:
                constants = chosen | {name: value}
                if tuple(constants.values()) not in known:
                    found = judged(trials, constants, EPSILONS[:-1])
                    known[tuple(constants.values())] = found["mean"], found["error"]
                    yield {"kind": "tried", **constants, **found}
            scores = {value: known[tuple((chosen | {name: value}).values())] for value in values}
            top = max(scores, key=lambda value: scores[value])
            equal = [
                v
                for v in values
                if scores[top][0] - scores[v][0] <= math.hypot(scores[top][1], scores[v][1])
            ]
            stays = min(equal) if name == "_STEPS" else chosen[name]
            chosen[name] = stays if stays in equal else top
        if chosen == before:
            break
    yield {"kind": "chosen", **chosen}
    # What it would cost if no attack on membership could have an area above 0.55
    least = 1 / (math.sqrt(2) * float(ndtri(0.55)))
    for epsilon in (dp_accounting.get_epsilon_gaussian(least, DELTA), 1.0):
        yield {"kind": "area", "epsilon": epsilon, **judged(trials, chosen, (epsilon,), 3)}


def judged(
    trials: dict[str, list[tuple[Split, Split, ACILClassifier]]],
    constants: dict[str, float],
    epsilons: tuple[float, ...],
    more: int = 1,
) -> dict[str, Any]:
    """Return mean accuracies of `private_softmax` by features, their mean, and its standard error."""
    means, variances = {}, []
    with patch.multiple("acil.privacy.softmax", **constants):
        for name, spaces_of in trials.items():
            found = np.array(
                [
                    [
                        accuracy(judge, private_weights(rows, clf, epsilon))
                        for _ in range(more * (30 if name == "photos" else 2))
                    ]
                    for rows, judge, clf in spaces_of
                    for epsilon in epsilons
                ]
            )
            means[name] = float(found.mean())
            variances.append(found.var(axis=1, ddof=1).mean() / found.size)
    return {
        "by_features": means,
        "mean": np.mean(list(means.values())),
        "error": math.sqrt(sum(variances)) / len(means),
    }


def best(records: list[dict[str, Any]]) -> dict[tuple[str, str], dict[float, float]]:
    """Return the accuracy by ε of each row of the table: of the record that is best on stand-ins."""
    rows: dict[tuple[str, str], dict[float, tuple[float, float]]] = {}
    for record in records:
        if record["stand_in"] is not None:
            sums = record["form"] not in ("DP-SGD", "softmax")
            who = f"release, K = {record['phases']}" if sums else record["form"]
            row = rows.setdefault((record["features"], who), {})
            found = (record["stand_in"], record["accuracy"])
            row[record["epsilon"]] = max(row.get(record["epsilon"], found), found)
    return {key: {e: pair[1] for e, pair in row.items()} for key, row in sorted(rows.items())}


def table(records: list[dict[str, Any]]) -> str:
    """Return the frontier as Markdown."""
    lines = ["| features | | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |"]
    lines += ["| --- | --- |" + " --- |" * len(EPSILONS)]
    for (features, who), found in best(records).items():
        values = " | ".join(f"{found[e]:.1f}" if e in found else "" for e in EPSILONS)
        lines.append(f"| {features} | {who} | {values} |")
    return "\n".join(lines).replace("ε = inf", "no privacy") + "\n"


def plot(records: list[dict[str, Any]], path: Path) -> None:
    """Draw the frontier, one panel for each set of features."""
    from matplotlib.figure import Figure

    rows = best(records)
    names = sorted({features for features, _ in rows})
    figure = Figure(figsize=(3.2 * len(names), 2.8), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for (features, who), found in rows.items():
            if features == name:
                style = "o:" if who.startswith("DP-SGD") else "o-"
                places = [i for i, epsilon in enumerate(EPSILONS) if epsilon in found]
                axes.plot(places, [found[EPSILONS[i]] for i in places], style, label=who, markersize=3)
        axes.set_xticks(range(len(EPSILONS)), [f"{e:g}".replace("inf", "∞") for e in EPSILONS])
        axes.set(title=name, xlabel="ε")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("accuracy, %")
    # The middle one has room for it.
    figure.axes[len(names) // 2].legend(fontsize=7, loc="lower right")
    figure.savefig(path, dpi=110)


def write(out: Path, name: str, records: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Append records to a file as they come; return all that are there."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{name}.jsonl"
    with file.open("a", encoding="utf-8") as lines:
        for record in records:
            print(json.dumps(record), flush=True)
            lines.write(json.dumps(record) + "\n")
            lines.flush()
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def main(arguments: list[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["features", "choice", "recovery", "frontier", "report"])
    parser.add_argument("--features", type=Path, required=True, help="folder of extracted features")
    parser.add_argument("--photos", type=Path, help="folder with train/CLASS and test/CLASS")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "privacy")
    parser.add_argument("--only", default="paper,strong,photos")
    parser.add_argument("--opacus", action="store_true", help="compare with Opacus, too")
    given = parser.parse_args(arguments)
    only = given.only.split(",")
    if given.what == "features":
        extract(given.features, given.photos)
    elif given.what == "choice":
        write(given.out, "choice", choice(given.features, only))
    elif given.what == "recovery":
        write(given.out, "recovery", recovery(given.features, only))
        picture(Split.read(given.features / "paper-train.safetensors"), given.out / "recovered.png")
    else:
        new: Iterator[dict[str, Any]] = iter(())
        if given.what == "frontier":
            new = frontier(given.features, only, given.opacus)
        records = write(given.out, "frontier", new)
        (given.out / "frontier.md").write_text(table(records), encoding="utf-8")
        plot(records, given.out / "frontier.png")
        print(table(records))


if __name__ == "__main__":
    main()
