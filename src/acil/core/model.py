"""What a classifier has learnt, replaced whole by every change; and whether it can have learnt it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acil.core.cholesky import cholesky_
from acil.core.exchange import ModelSums, Origin, both_ledgers
from acil.core.exchange import joined as joined_calibration
from acil.core.expansion import MEASURED, AnalyticModel, Expansion
from acil.core.gcv import GRID, freedom_share
from acil.core.inputs import (
    Labels,
    Rows,
    check_labels,
    check_same_kind,
    columns_of,
    given_scaling,
    require_not_private,
    resolve_device,
    resolve_seed,
    union,
)
from acil.core.linalg import pack_lower, solve_lower
from acil.core.parameters import FITTED, scores_of
from acil.core.recursion import Recursion
from acil.core.ridge import Ridge
from acil.core.scores import (
    Calibration,
    Discriminant,
    Discriminants,
    estimated_temperature,
    heat,
    log_novelty,
    mixer_of,
)
from acil.core.sums import PRECISIONS, Block, Matrix, Sums, joined
from acil.errors import InputError, SingularMatrixError, UnsupportedError

#: What sums of weights may round by; anything beyond that was never learnt.
_WEIGHT_ROUNDING = 1e-9
#: Least mean weight of the first samples: discriminants count by weight, and at 1e-10 count nothing.
_LEAST_WEIGHT = 1e-9
#: Standard deviation of the biases of the expansion, in lengths of standardized rows, or as it is.
_BIAS = 0.5
#: Most samples that wait to be counted together, and the same as a share of d.
_MAX_UNCOUNTED, _UNCOUNTED_SHARE = 512, 1 / 8


class Samples(NamedTuple):
    """Rows, a label of each, and a weight of each unless all are 1; checked, except for the values."""

    rows: Rows
    labels: Labels
    weights: Tensor | None


@dataclass(frozen=True)
class Learnt:
    """Everything learnt, in one object that is replaced whole."""

    classes: Labels  # sorted; label i is column i of the model
    model: AnalyticModel
    seed: int  # that the expansion was drawn with
    #: What is taken from each feature, and what it is divided by then: of shape (2, n_features)
    scaling: Tensor | None = None
    calibration: Calibration | None = None  # of discriminant scores
    #: Recent samples that are not in the calibration yet: in memory only, like those of `Ridge`.
    uncounted: tuple[Block, ...] = ()
    n_uncounted: int = 0
    release: dict[str, Any] | None = None  # releases made of these samples, see `acil.privacy`
    #: Whether acil itself has clipped all rows in the sums, if there is a clip norm
    clipped: bool = True
    #: Samples learnt or forgotten since the model was last saved or loaded; −inf before that
    changes: float = -math.inf

    @classmethod
    def new(
        cls,
        settings: Mapping[str, Any],
        classes: Labels,
        n_features: int,
        seed: int,
        scaling: Tensor | None = None,
        names: Sequence[str] | None = None,
        release: dict[str, Any] | None = None,
        expansion: Expansion | None = None,
        first: Samples | None = None,
    ) -> Learnt:
        """Return the state that has learnt nothing yet, as settings that were checked describe it.

        With names of features, more of them may be added later: see `widened`. ``release`` is that of
        what was learnt before, which may be the same samples. An expansion that is given is not drawn,
        and some kinds are made from the ``first`` samples.
        """
        precision = PRECISIONS[settings["dtype"]]
        device = resolve_device(settings["device"], settings["dtype"])
        norm, gamma = settings["clip_norm"], settings["gamma"]
        scores, bias = scores_of(settings), settings["expansion_bias"]
        # Features that come and go have no units of their own, and would be most of a clipped row.
        linear = bias == "auto" and scores == "discriminant" and names is None and norm is None
        if bias == "auto":
            # Where features have no scale of ours, and scores are the paper's, there is none.
            bias = 0.0 if scaling is None and scores == "ridge" else _BIAS
            bias *= 1.0 if scaling is None else math.sqrt(n_features)
        size, kind = settings["expansion_size"], settings["activation"]
        linear &= size is not None and kind != "identity" and n_features <= size
        if linear and n_features == size:
            size, linear = None, False  # there is no room for random units
        if expansion is None and size is not None and kind in FITTED:
            if first is None or names is not None:
                raise UnsupportedError(
                    f"activation={kind!r} makes its expansion from the samples of the first call. It is "
                    "not for streams of named features, for several processes, or for sums without "
                    "their expansion: learn the first samples alone, and go on from that model."
                )
            chosen = first.rows.drawn(max(size, MEASURED), first.weights, seed)
            if scaling is not None:
                chosen = (chosen - scaling[0]) / scaling[1]
            expansion = Expansion.fitted(chosen, size, kind, seed)
        elif expansion is None:
            expansion = Expansion.draw(
                n_features if names is None else 0,
                size,
                kind,
                seed,
                None if norm is None else float(norm),
                float(bias),
                linear,
            )
            if names is not None:
                expansion = expansion.widened(names, seed)
        head: Ridge | Recursion
        if settings["solver"] == "recursive":
            head = Recursion(expansion.size, precision, device, float(gamma))
        else:
            sums = Sums(expansion.size, 0, precision.sums, device)
            # Discriminants are the same without, but for rounding of what all samples have in common.
            intercept = settings["fit_intercept"] or scores == "discriminant"
            fixed = None if gamma == "auto" else float(gamma)
            head = Ridge(sums, precision, fixed, intercept, freedom_share(scores))
        mixer = mixer_of(scores, settings["class_balance"])
        calibration = Calibration.empty() if scores == "discriminant" else None
        model = AnalyticModel(expansion, head, device, mixer)
        release = release and {**release, "private": False, "epsilon": None, "delta": None}
        return cls(classes, model, seed, scaling, calibration, release=release)

    @property
    def is_discriminant(self) -> bool:
        """Whether scores are discriminants; only they are calibrated."""
        return isinstance(self.model.mixer, Discriminants)

    def widened(self, names: Sequence[str]) -> Learnt:
        """Return the state for samples with more features, of which those learnt have 0."""
        # Without a projection, rows that wait would be too short.
        state = self.counted() if self.model.expansion.projection is None else self
        model = self.model.widened(self.model.expansion.widened(names, self.seed))
        scaling = self.scaling
        if scaling is not None:
            k = len(names)
            scaling = torch.cat([scaling, torch.tensor([[0.0], [1.0]]).to(scaling).expand(2, k)], dim=1)
        return replace(state, model=model, scaling=scaling)

    def features(self, rows: Rows) -> Iterator[Tensor]:
        """Return blocks of rows, of the size and type that the model takes."""
        dtype, device = self.model.precision.products, self.model.device
        if self.scaling is None:
            return rows.blocks(self.model.block_rows, dtype, device)
        # In float64, also where products are in float32: there a large mean would leave few digits.
        blocks = rows.blocks(self.model.block_rows, torch.float64, torch.device("cpu"))
        shift, unit = self.scaling
        return (((b - shift) / unit).to(device=device, dtype=dtype) for b in blocks)

    def check_values(self, rows: Rows, weights: Tensor | None = None) -> None:
        """Raise an `InputError` if values are not finite, or too large to be squared and added up."""
        # |x W_fe|² ≤ ‖x‖² · (largest column norm)², and sums of it must not overflow
        limit = torch.finfo(self.model.precision.products).max / 1e3
        if weights is not None:
            if not float(weights.sum()) < limit:
                raise InputError("The sample weights are too large to be added up. Give smaller ones.")
            limit /= max(1.0, float(weights.max()))
        stretch = self.model.expansion.column_norm()
        if self.scaling is not None:
            stretch *= max(1.0, 1 / float(self.scaling[1].min()))
        rows.check_finite(limit / max(1.0, stretch * stretch))

    def check_scale(self, samples: Samples) -> None:
        """Raise an `InputError` if the first samples are too small to square, or weigh too little."""
        rows, weights = samples.rows, samples.weights
        if weights is not None and 0 < float(weights[weights > 0].mean()) < _LEAST_WEIGHT:
            raise InputError(
                f"The sample weights are {float(weights[weights > 0].mean()):.1e} on average, at least "
                f"{_LEAST_WEIGHT:g} is needed. Scale them: a sample of weight 1 counts as one."
            )
        products = self.model.precision.products if self.scaling is None else torch.float64
        facts = torch.finfo(products)
        # Squares have all their digits only above this.
        least, largest = (facts.tiny / facts.eps) ** 0.5, rows.largest()
        if 0 < largest < least:
            raise InputError(
                f"X has values too small to square (up to {largest:.3g}, at least {least:.1g} is "
                'needed). Scale the features, or use dtype="float64".'
            )

    def check(self, samples: Samples) -> None:
        """Raise if samples cannot be learnt or forgotten: for their values or labels, or the model."""
        self.model.learner  # noqa: B018 (raises if the model can only predict)
        check_same_kind(samples.labels, self.classes)
        self.check_values(samples.rows, samples.weights)
        most = 1.0 if samples.weights is None else float(samples.weights.max())
        if most > 1 and self.model.expansion.clip_norm is not None:
            raise InputError(
                f"A sample has the weight {most:g}, but with clip_norm no sample may count more than "
                "once. Give weights from 0 to 1."
            )
        self.require_sums_of_samples()

    def blocks(self, samples: Samples, classes: Labels) -> Iterator[Block]:
        """Return expanded blocks of samples, with their columns among some classes."""
        columns = columns_of(samples.labels, classes)
        return self.model.blocks(self.features(samples.rows), columns, samples.weights)

    def learned(self, samples: Samples, declared: Labels) -> Learnt:
        """Return the state after learning samples, of declared classes.

        Few samples wait to be counted for the calibration. It is approximate if they were many: see
        `counted`.
        """
        classes, n = union(self.classes, declared), len(samples.rows)
        places, at_once = columns_of(self.classes, classes), self.counts_at_once(samples)
        blocks, recent = self.blocks(samples, classes), list[Block]()
        if self.calibration is not None and not at_once:
            # Copies: without an expansion, rows may be memory of the caller.
            recent = [(rows.clone(), columns, weights) for rows, columns, weights in blocks]
            blocks = iter(recent)
        model = self.model.with_head(self.model.learner.learn(blocks, n, places, len(classes)))
        changes = self.changes + n
        if self.calibration is None:
            return replace(self, classes=classes, model=model, changes=changes)
        calibration = self.calibration.among(self.model.head.counts, model.head.counts)
        if at_once:
            calibration = calibration.merged(None)
        uncounted = self.uncounted
        if len(places) < len(classes):
            uncounted = tuple((rows, places[c], weights) for rows, c, weights in uncounted)
        waiting = self.n_uncounted + sum(len(rows) for rows, _, _ in recent)
        return replace(
            self,
            classes=classes,
            model=model,
            changes=changes,
            calibration=calibration,
            uncounted=(*uncounted, *recent),
            n_uncounted=waiting,
        )

    def counts_at_once(self, samples: Samples) -> bool:
        """Say whether samples have to be counted when they are learnt: the first ones, or many."""
        if self.calibration is None:
            return False
        most = min(_MAX_UNCOUNTED, self.model.expansion.size * _UNCOUNTED_SHARE)
        # Asking a model that was just fitted must not change it: scikit-learn's rule.
        return len(samples.rows) + self.n_uncounted > most or not bool(self.model.head.counts.any())

    def counted(self, samples: Samples | None = None, before: Learnt | None = None) -> Learnt:
        """Return the state with the samples that wait in the calibration.

        With those that were just learnt, too, by the state ``before`` them.
        """
        if self.calibration is None or not (self.uncounted or samples):
            return self
        calibration = self.calibration
        if before is not None and before.calibration is not None:
            calibration = before.calibration.among(before.model.head.counts, self.model.head.counts)
        blocks = chain(joined(self.uncounted), self.blocks(samples, self.classes) if samples else ())
        return replace(
            self, calibration=calibration.merged(self.measured(blocks)), uncounted=(), n_uncounted=0
        )

    def merged(self, sums: Sums, labels: Labels, calibration: Calibration | None) -> Learnt:
        """Return the state after adding sums over other samples, of classes with these labels."""
        classes = union(self.classes, labels)
        places, positions = columns_of(self.classes, classes), columns_of(labels, classes)
        head = self.model.ridge.merge(sums, positions, places, len(classes))
        theirs = calibration and calibration.among(sums.counts, head.counts)
        mine = self.calibration and self.calibration.among(self.model.head.counts, head.counts)
        both = joined_calibration(mine, theirs) if self.is_discriminant else None
        model, changes = self.model.with_head(head), self.changes + sums.n_samples
        return replace(self, classes=classes, model=model, calibration=both, changes=changes)

    def forgotten(self, samples: Samples) -> Learnt:
        """Return the state that has never learnt samples; raise if they cannot have been learnt."""
        head = self.model.learner
        self._require_learnt(columns_of(samples.labels, self.classes), samples.weights)
        if isinstance(head, Ridge):
            require_forgettable(head, self.blocks(samples, self.classes))
        calibration = self.calibration
        if calibration is not None:
            calibration = calibration.less(self.measured(self.blocks(samples, self.classes)))
        rest, kept = head.forget(self.blocks(samples, self.classes), declared=head.counts == 0)
        return replace(
            self,
            classes=self.classes[kept.numpy()],
            model=self.model.with_head(rest),
            calibration=calibration,
            changes=self.changes + len(samples.rows),
        )

    def renamed(self, labels: Labels) -> Learnt:
        """Return the state in which class i has the label ``labels[i]``; those of one label are one."""
        self.require_sums_of_samples()
        state, classes = self.counted(), np.unique(labels)
        head = state.model.learner.regrouped(columns_of(labels, classes), len(classes))
        calibration = state.calibration
        if calibration is not None and len(classes) < len(labels):
            # Samples were scored among the classes of that time.
            calibration = calibration.merged(None)
        return replace(
            state, classes=classes, model=state.model.with_head(head), calibration=calibration
        )

    def measured(self, blocks: Iterable[Block]) -> Calibration:
        """Return how expanded samples that were learnt score when each is left out."""
        model, total = self.model, Calibration.empty(self.hotter)
        with suppress(SingularMatrixError):  # it is for whoever predicts, not for whoever learns
            found = Discriminant.of(model)
            for block, columns, given in blocks:
                heavy = torch.ones(len(columns), dtype=torch.float64) if given is None else given
                by_ridge, leverages = self._regression(block)
                left = found.left_out(by_ridge, leverages, columns, heavy)
                scores, distances, counts, farther = left
                novelty = log_novelty(found, model, block, scores.amax(dim=1), distances)
                scores = scores / (heat(scores, total.hotter) * farther.unsqueeze(1))
                parts = scores, columns, novelty, heavy, counts
                total = total.plus(*(part[counts > 0] for part in parts))
        return total

    def novelty(self, block: Tensor) -> Tensor:
        """Return how unlike everything learnt rows are."""
        rows, known = self.model.expansion(block), self.calibration or Calibration.empty()
        found = Discriminant.of(self.model)
        measure = log_novelty(found, self.model, rows, *found.nearest(*self._regression(rows)))
        relative = (measure - known.largest_known()).to(rows)
        return relative.clamp(max=math.log(torch.finfo(rows.dtype).max) - 1).exp()

    def _regression(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores of the regression and leverages of expanded rows, on the CPU."""
        leverages = self.model.ask(lambda head: head.leverage(rows))
        coef, intercept = (part.to(rows) for part in self.model.ridge.coefficients())
        return (rows @ coef + intercept).cpu(), leverages.cpu().double()

    def gamma_unit(self) -> float:
        """Return trace(gram) / d, the scale to which γ is compared."""
        self.model.ridge.flush()
        return float(self.model.ridge.sums.gram.diagonal().mean())

    def temperature(self) -> float:
        """Return the temperature of the softmax that gives probabilities."""
        model, known = self.model, self.model.known_temperature
        if self.calibration is None or model.head.solver == "frozen":
            return estimated_temperature(model)
        if known is None:
            found = Discriminant.of(model)
            known = self.calibration.temperature(found.farther, found.single)
            model.known_temperature = known
        return known

    @property
    def hotter(self) -> float:
        """How much hotter a row is for its highest score: see `heat`."""
        return 0.0 if self.calibration is None else self.calibration.hotter

    def probabilities(self, scores: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield probabilities of rows with these scores, which rank like them."""
        temperature, hotter = self.temperature(), self.hotter
        return (torch.softmax(s / (temperature * heat(s, hotter)), dim=1) for s in scores)

    def _require_learnt(self, columns: Tensor, weights: Tensor | None) -> None:
        """Raise if a class has fewer samples, or less weight, than are to be forgotten."""
        head, n_classes = self.model.learner, len(self.classes)
        counts = head.counts
        asked = torch.bincount(columns if weights is None else columns[weights > 0], minlength=n_classes)
        for column in torch.nonzero(asked > counts).flatten().tolist():
            raise InputError(
                f"Cannot forget {int(asked[column])} samples of {self.classes[column].item()!r}: only "
                f"{int(counts[column])} were learnt."
            )
        heavy = torch.bincount(columns, weights, minlength=n_classes).double()
        left, rounding = head.class_weights - heavy, _WEIGHT_ROUNDING * head.class_weights
        # No weight is left of some samples, or weight of none.
        too_much = (left < -rounding) | ((asked > 0) & (asked < counts) & (left <= 0))
        too_little = (asked > 0) & (asked == counts) & (left > rounding)
        for column in torch.nonzero(too_much | too_little).flatten().tolist():
            raise InputError(
                f"Cannot forget {int(asked[column])} of {int(counts[column])} samples of "
                f"{self.classes[column].item()!r} with a weight of {float(heavy[column]):g}: "
                f"{float(head.class_weights[column]):g} was learnt. Give the weights they were learnt "
                "with."
            )

    def require_enough(self, labels: Labels, counts: npt.NDArray[Any], least: int) -> None:
        """Raise if one of these classes would have samples, but fewer than allowed, after learning."""
        for label, count in zip(labels, counts.tolist(), strict=True):
            known = int(self.model.head.counts[self.classes == label].sum())
            if count > 0 and known + count < least:
                raise InputError(
                    f"Class {label.item()!r} would have {known + count} samples, fewer than "
                    f"min_class_samples={least}. Nothing was learnt and nothing waits: collect more "
                    "samples, and give them together."
                )

    def require_sums_of_samples(self) -> None:
        """Raise if the sums are those of a private release, which must not mix with others."""
        require_not_private(self.release)

    def origin(self, backbone: dict[str, Any] | None = None, names: Any = None) -> Origin:
        """Return what other sums must have the same to be added to these."""
        expansion = self.model.expansion
        scaling = None if self.scaling is None else self.scaling.tolist()
        features = expansion.in_features, expansion.fingerprint(), scaling
        return Origin(
            *(*features, self.model.precision.name, expansion.clip_norm, backbone),
            None if names is None else [str(name) for name in names],
        )

    def in_force(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings of a classifier, with those that were in force when it learnt."""
        expansion, ridge = self.model.expansion, self.model.ridge
        mixer, balance = self.model.mixer, 0.0
        if not self.is_discriminant and mixer is not None:
            balance = getattr(mixer, "exponent", 1.0)
        return {
            **settings,
            "random_state": self.seed,
            "expansion_size": None if expansion.projection is None else expansion.size,
            "activation": expansion.activation,
            "clip_norm": expansion.clip_norm,
            "dtype": self.model.precision.name,
            "solver": "gram",
            "gamma": "auto" if ridge.gamma is None else ridge.gamma,
            "scores": "discriminant" if self.is_discriminant else "ridge",
            "fit_intercept": ridge.intercept and not self.is_discriminant,
            "class_balance": balance,
            "standardize": False if self.scaling is None else self.scaling.tolist(),
        }

    def sums(
        self, settings: Mapping[str, Any], backbone: dict[str, Any] | None, names: Any, projection: bool
    ) -> ModelSums:
        """Return the sums as arrays, with what is needed to use them."""
        ridge, expansion = self.model.ridge, self.model.expansion
        ridge.flush()
        sums = ridge.sums

        def array(part: Tensor | None) -> Any:
            return None if part is None else part.cpu().numpy().copy()

        origin = self.origin(backbone, names)
        return ModelSums(
            classes=self.classes.copy(),
            counts=array(sums.counts),
            class_weight=array(sums.target_total),
            gram=pack_lower(sums.gram).numpy(),
            moment=array(sums.moment),
            total=array(sums.total),
            total_weight=sums.total_weight,
            n_features=origin.n_features,
            fingerprint=origin.fingerprint,
            parameters=self.in_force(settings),
            projection=array(expansion.projection) if projection else None,
            bias=array(expansion.bias) if projection else None,
            linear=expansion.linear if projection else 0.0,
            feature_names=origin.feature_names,
            backbone=backbone,
            clipped=self.clipped and expansion.clip_norm is not None,
            release=self.release,
            calibration=None if self.calibration is None else self.calibration.to_dict(summary=False),
        )

    def with_sums(self, given: ModelSums) -> Learnt:
        """Return the state after adding sums that somebody gives; raise if they cannot be of samples."""
        sums, ridge = given.tensors(), self.model.ridge
        check_same_kind(given.classes, self.classes)
        if given.private:
            if len(self.classes):
                require_not_private(given.release)
            intercept = ridge.intercept and not self.is_discriminant  # as `privatize` makes them
            sums = sums.moved_to(self.model.device)
            head = Ridge(sums, ridge.precision, ridge.gamma, intercept, ridge.freedom)
            mixer = self.model.mixer
            if isinstance(mixer, Discriminants):
                mixer = replace(mixer, draw=False)
            model = AnalyticModel(self.model.expansion, head, self.model.device, mixer)
            calibration = self.calibration and Calibration.empty(0.0).merged(None)
            new = replace(self, classes=given.classes, model=model, release=given.release)
            return replace(new, calibration=calibration, clipped=False)
        self.require_sums_of_samples()
        fault = impossible(Ridge(sums, ridge.precision, ridge.gamma, ridge.intercept))
        if fault:
            raise InputError(f"These cannot be sums over samples: {fault}.")
        calibration = given.calibrated(sums.counts)
        mine = self if calibration or self.model.head.counts.any() else replace(self, calibration=None)
        merged = mine.merged(sums, given.classes, calibration)
        ledger = both_ledgers(self.release, given.release)
        return replace(merged, release=ledger, clipped=self.clipped and given.clipped)


def empty_for(settings: Mapping[str, Any], sums: ModelSums) -> Learnt:
    """Return the state that has learnt nothing yet, for sums that somebody gives."""
    if settings["solver"] != "gram":
        raise UnsupportedError('Sums need a classifier that keeps them: use solver="gram".')
    given, bias, expansion = sums.projection, sums.bias, None
    if given is not None:
        parts = [None if part is None else torch.from_numpy(np.array(part)) for part in (given, bias)]
        right = np.shape(given)[:1] == (sums.n_features,) and len(np.shape(given)) == 2
        without = bias is None and settings["activation"] not in FITTED
        same = without or (bias is not None and np.shape(bias) == np.shape(given)[1:])
        if not (right and same and all(p is None or p.dtype == torch.float32 for p in parts)):
            raise InputError("The sums' projection and bias must be float32 and fit each other.")
        activation, norm = settings["activation"], settings["clip_norm"]
        expansion = Expansion(parts[0], activation, sums.n_features, norm, parts[1], sums.linear)
    scaling = given_scaling(settings)
    if scaling is None and settings["standardize"] is not False:
        scaling = given_scaling(sums.parameters)
    seed = resolve_seed(settings["random_state"])
    classes = check_labels(sums.classes)[:0]
    return Learnt.new(settings, classes, sums.n_features, seed, scaling, expansion=expansion)


def require_forgettable(ridge: Ridge, blocks: Iterable[Block]) -> None:
    """Raise if some samples cannot have been learnt."""
    ridge.drop_factor()
    fault = impossible(ridge, blocks)
    if fault:
        raise InputError(
            f"These samples cannot be forgotten: without them, {fault}. Not all were learnt, or not "
            "under these classes, or not with these weights."
        )


def impossible(ridge: Ridge, gone: Iterable[Block] = ()) -> str:
    """Say why no samples can have the sums, less those of some samples; "" if some can.

    Notes
    -----
    With z = (x, y), sums over samples make up Σ w z zᵀ = [G, M; Mᵀ, N]. N is Σ w y yᵀ: of classes, the
    diagonal matrix of their weights. So no eigenvalue is negative: not of G, and not of
    N − Mᵀ (G + νI)⁻¹ M. As ν bounds the rounding in G, only that in M can make one negative, by
    ``slack`` at most.
    """
    sums, d, eps = ridge.sums, len(ridge.sums.gram), torch.finfo(ridge.precision.products).eps
    diagonal = sums.gram.diagonal()
    least = GRID[0] * float(diagonal.mean()) if ridge.gamma is None else ridge.gamma
    # What rounding of larger sums, forgotten since, has left may be more; beside γ it is nothing.
    noise = max(100 * d**0.5 * eps * float(diagonal.max()), 1e-3 * least)
    slack = 20 * (d**0.5 * eps) ** 0.5 * float(sums.target_squares.max())
    rest = sums.draft()
    # A copy, in memory that is there already
    rest.matrix, rest.version = Matrix(sums.matrix.scratch(d, sums.gram.dtype).copy_(sums.gram)), 0
    rest.add(gone, sign=-1)
    if not rest.n_samples:
        return ""
    gram = rest.gram
    # Of samples that are all zero, any number will do.
    gram.diagonal().add_(0.0 if ridge.gamma == 0 else noise or 1.0)
    try:
        cholesky_(gram, noise)
    except SingularMatrixError:
        return "gram is not positive definite"
    if ridge.gamma != 0 and least_left(gram, rest.moment, rest.target_products) < -slack:
        return "moment and the weights of the classes do not belong to gram"
    return ""


def least_left(lower: Tensor, moment: Tensor, products: Tensor) -> float:
    """Return the least eigenvalue of N − Mᵀ (L Lᵀ)⁻¹ M: what a regression leaves of the targets.

    ``lower`` is L, ``moment`` M of shape (d, n_targets) and ``products`` N, or its diagonal. Of more
    targets than d, where the matrix would be larger than the sums, the least diagonal entry.
    """
    whitened = solve_lower(lower, moment)
    whole = torch.diag(products) if products.ndim == 1 else products
    squares = whitened.square().sum(dim=0)
    if not bool(squares.isfinite().all()):
        return -math.inf
    if len(squares) > len(lower):
        return float((whole.diagonal().to(squares) - squares).min())
    return float(torch.linalg.eigvalsh(whole.to(whitened) - whitened.mT @ whitened)[0])
