"""ACILClassifier: the scikit-learn face of the closed-form learner."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from torch import Tensor

from acil.core.exchange import ModelSums, Origin, both_ledgers
from acil.core.expansion import Frozen, Weights, require_numbers
from acil.core.inputs import (
    Labels,
    Rows,
    check_candidates,
    check_declared,
    check_gamma,
    check_labels,
    check_rows,
    check_same_kind,
    check_weights,
    columns_of,
    given_scaling,
    resolve_seed,
)
from acil.core.linalg import plain_torch, sized
from acil.core.model import Learnt, Samples, empty_for
from acil.core.parameters import PARAMETERS, check_parameters, scores_of
from acil.core.scores import condition, rebalanced
from acil.errors import InputError, NotFittedError

logger = logging.getLogger(__name__)

#: The lock of each model: beside its content, so that no copy has it and no file.
_LOCKS: WeakKeyDictionary[ACILClassifier, threading.RLock] = WeakKeyDictionary()


_Classifier = TypeVar("_Classifier", bound="ACILClassifier")


class _UnfittedError(NotFittedError, SklearnNotFittedError):  # type: ignore[misc]
    """What code written for scikit-learn expects from a model that has learnt nothing."""


def _work(model: ACILClassifier, X: Any = None, *others: Any, **options: Any) -> float:
    """Return the multiplications of a call on rows; ∞ if that cannot be told before they are checked."""
    try:
        n, features = X.shape
        width = model.expansion_size or features
        return float(n * width * max(width, features))
    except (AttributeError, TypeError, ValueError):
        return math.inf


class ACILClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifier that learns new classes in closed form, forgets nothing and keeps no sample.

    A random expansion followed by ridge regression onto one-hot labels, and linear discriminants of it.
    Learning in phases, in any order and grouping, gives the model of learning everything at once (up to
    rounding, see *Notes*). ``ACILClassifier(scores="ridge", gamma=…)`` is the method of the paper.

    Parameters
    ----------
    expansion_size : int or None, default=2048
        Width d of the random expansion; ``None`` uses the features as they are, which is better where
        there are more than d of them.
    gamma : float or "auto", default="auto"
        Ridge strength γ ≥ 0, as in the paper. It means something only relative to the scale of the
        features (see ``gamma_relative_``). ``"auto"`` chooses it by generalized cross-validation over
        the sums, with every solution from the sums (`solve`). Few new samples keep it.
    activation : {"relu", "tanh", "gelu", "identity", "fourier", "gaussian"}, default="relu"
        Function applied to the expanded features. Two kinds approximate a Gaussian kernel, whose width
        is the median distance of samples of the first call: random Fourier features, and kernels around
        samples of the first call, which the model then holds. Models are merged only if one was made
        from the other, so that they have the same.
    solver : {"gram", "recursive"}, default="gram"
        ``"gram"`` keeps sums and solves when weights are needed: exact, mergeable. ``"recursive"`` is
        the paper's recursion; ``merge``, ``select_gamma``, ``fit_intercept`` and ``gamma="auto"``
        need the sums and are refused with it.
    dtype : {"float64", "float32", "mixed"}, default="float64"
        ``"mixed"`` multiplies in float32, sums in float64 and refines the solution, for machines on
        which float64 is slow.
    random_state : int, RandomState or None, default=0
        Seed of the expansion. Only models with the same expansion can be merged.
    device : str, default="auto"
        ``"auto"`` takes CUDA when there is one, else the CPU.
    fit_intercept : bool, default=False
        Centre features and targets. Done from the sums, without data.
    class_balance : float, default=0
        Exponent a from 0 to 1 (True is 1) of ridge scores: a class of weight n counts n^−a times, so
        that frequent classes do not win by their number alone. Done from the sums, without data.
        Discriminants are balanced by themselves.
    clip_norm : float, optional
        Largest Euclidean norm of an expanded row; longer ones are scaled to it. Choose it without the
        data: `acil.privacy.privatize` relies on it. Sample weights are then at most 1.
    min_class_samples : int, default=1
        Refuse to learn a class of which the model would then have fewer samples; `forget` only warns.
    scores : {"auto", "ridge", "discriminant"}, default="auto"
        ``"discriminant"`` makes linear discriminants of the weights of the regression, from the same
        sums: better where classes have few samples, with calibrated probabilities. A call that learns
        many samples then solves, and looks at them once more. ``"ridge"`` scores by the weights, as in
        the paper. ``"auto"`` is ``"discriminant"``, but ``"ridge"`` with ``solver="recursive"``,
        ``fit_intercept`` or ``class_balance``.
    standardize : bool, "auto" or array-like of shape (2, n_features), default="auto"
        Shift and scale each feature to mean 0 and deviation 1 over the samples of the first call; later
        calls keep that scale. Only models with the same scale can be merged, or compared with learning
        everything at once, so give means and deviations if you know them, or the ``scaling_`` of another
        model. ``"auto"`` does so only for discriminants of features in several units (the largest root
        mean square of a feature is more than 10 times the median) or of rows shorter than 0.1.
    expansion_bias : float or "auto", default="auto"
        Standard deviation of the bias b in ``activation(X W_fe + b)``. ``"auto"`` is half the length of
        a standardized row, or 0.5 where features are as they are; 0 for ridge scores of such features,
        as in the paper. Without it the expansion of 2x is twice that of x. For discriminants, ``"auto"``
        also takes the features themselves, several times as heavy, for the first of the d units if they
        are at most d: what is linear need not be learnt from random units. Of d features nothing is
        expanded then.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels seen (or declared), sorted.
    coef_ : ndarray of shape (n_classes, d)
        Weights, solved when first needed.
    intercept_ : ndarray of shape (n_classes,)
        Zeros unless ``fit_intercept``.
    class_count_ : ndarray of shape (n_classes,)
        Number of samples of each class.
    gamma_ : float
        The γ in use.
    gamma_relative_ : float
        γ / (trace(gram) / d), which can be compared between data sets. ``solver="gram"`` only.
    condition_ : float
        Estimate of the condition number κ of gram + γI; with discriminants, of what rounding in the sums
        is multiplied by in the scores (docs/guarantees.md).
    n_samples_ : int
        Number of samples learnt.
    n_features_in_ : int
        Number of features of X.
    scaling_ : ndarray of shape (2, n_features) or None
        What is taken from each feature, and what it is divided by then.
    temperature_ : float
        Temperature of the softmax in ``predict_proba``, for rows without a positive score.

    Notes
    -----
    With ``solver="gram"`` in float64 and equal γ, two ways to the same model agree to
    max(1e-12, c·√(1 + n/d)·ε·κ) in scores and in weights (ε = 2.2e-16): c = 1 for phases and merging,
    10 for single samples in a stream and after forgetting. κ is ``condition_``, with the largest
    eigenvalue that gram + γI ever had; docs/guarantees.md has the exceptions. The recursion agrees to
    max(1e-6, 100·ε·κ), with the ε of its dtype. With ``solver="gram"`` in float32 and mixed precision
    ridge scores agree to about 1e-3 while κ ≤ 5e4, and κ > 8.4e4 is refused.

    Threads may predict while another one learns: they see the model before or after, never in between.

    Parameters that are set on a model that has learnt take effect at the next ``fit``; for γ there are
    ``set_gamma`` and ``select_gamma``.

    The head can forget samples exactly. A backbone that was trained on them does not.

    Examples
    --------
    >>> import numpy as np
    >>> from acil import ACILClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 4)) + np.repeat(np.eye(3, 4) * 6, 20, axis=0)
    >>> y = np.repeat(["cat", "dog", "owl"], 20)
    >>> phased = ACILClassifier(expansion_size=64)
    >>> phased.partial_fit(X[:40], y[:40]).partial_fit(X[40:], y[40:]).score(X, y)
    1.0
    >>> joint = ACILClassifier(expansion_size=64).fit(X, y)
    >>> bool(np.allclose(phased.coef_, joint.coef_, rtol=0, atol=1e-8))
    True
    """

    def __init__(
        self,
        expansion_size: int | None = 2048,
        gamma: float | Literal["auto"] = "auto",
        activation: Literal["relu", "tanh", "gelu", "identity", "fourier", "gaussian"] = "relu",
        solver: Literal["gram", "recursive"] = "gram",
        dtype: Literal["float64", "float32", "mixed"] = "float64",
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        fit_intercept: bool = False,
        class_balance: float = 0.0,
        clip_norm: float | None = None,
        min_class_samples: int = 1,
        scores: Literal["auto", "ridge", "discriminant"] = "auto",
        standardize: bool | Literal["auto"] | npt.ArrayLike = "auto",
        expansion_bias: float | Literal["auto"] = "auto",
    ) -> None:
        self.expansion_size = expansion_size
        self.gamma = gamma
        self.activation = activation
        self.solver = solver
        self.dtype = dtype
        self.random_state = random_state
        self.device = device
        self.fit_intercept = fit_intercept
        self.class_balance = class_balance
        self.clip_norm = clip_norm
        self.min_class_samples = min_class_samples
        self.scores = scores
        self.standardize = standardize
        self.expansion_bias = expansion_bias

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from scratch; arguments as in `partial_fit`."""
        return self._learn(X, y, None, sample_weight, fresh=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn more samples, of new or known classes, in any number and order.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, n_features)
        y : array-like or Tensor of shape (n,)
            int, float, bool or str, the same kind in all calls.
        classes : array-like, optional
            Labels to expect. Not needed: classes may appear at any time. A class without samples
            is in ``classes_``, is never predicted and has the score −inf.
        sample_weight : array-like of shape (n,), optional
            A sample of weight 2 counts like two samples, one of weight 0 like none. So weights should be
            about 1 on average: if they add up to 1, everything counts as one sample, and γ and
            probabilities are chosen for that.
        """
        return self._learn(X, y, classes, sample_weight, fresh=False)

    @sized(_work)
    def forget(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Remove samples: the head becomes the one that never learnt them.

        A class whose samples are all forgotten leaves ``classes_``. That samples were never learnt, or
        under another class, cannot always be noticed (docs/guarantees.md). What is noticed is an error
        that changes nothing: an unknown class, more samples of a class than were learnt, sums that no
        set of samples can have.

        This is exact for the head. Samples that the backbone was trained on stay in the backbone.

        Parameters
        ----------
        X, y, sample_weight
            As given when they were learnt.
        """
        with holding(self, counted=True) as state:
            samples = check_samples(self, X, y, sample_weight)
            state.check(samples)
            self._state = rest = state.forgotten(samples)
            left = zip(rest.classes.tolist(), rest.model.head.counts.tolist(), strict=True)
            for label, count in left:
                if 0 < count < self.min_class_samples:
                    logger.warning(
                        "Class %r has %d samples left, fewer than min_class_samples=%d. Forget them "
                        "too, if such classes are not to be known.",
                        *(label, count, self.min_class_samples),
                    )
        return self

    def merge(self, other: ACILClassifier) -> Self:
        """Add everything another model has learnt, as if this one had seen its samples too.

        Parameters
        ----------
        other : ACILClassifier
            Fitted with the same expansion and the same backbone; it is not changed. This model's γ and
            settings stay.
        """
        if not isinstance(other, ACILClassifier):
            raise InputError(f"merge needs another ACILClassifier, got {type(other).__name__}.")
        # In one order for all threads, so that two models can be merged into each other at once
        first, second = (self, other) if id(self) < id(other) else (other, self)
        with holding(first, counted=True), holding(second, counted=True):
            mine, theirs = learnt_of(self), learnt_of(other)
            for state in (mine, theirs):
                state.model.ridge.flush()
                state.require_sums_of_samples()
            origin_of(self, mine).require_same(origin_of(other, theirs))
            check_same_kind(theirs.classes, mine.classes)
            mine.require_enough(theirs.classes, theirs.model.head.counts.numpy(), self.min_class_samples)
            merged = mine.merged(theirs.model.ridge.sums, theirs.classes, theirs.calibration)
            ledger = both_ledgers(mine.release, theirs.release)
            self._state = replace(merged, release=ledger, clipped=mine.clipped and theirs.clipped)
        return self

    def rename_classes(self, labels: Mapping[Any, Any]) -> Self:
        """Give classes other labels; classes that get the same label become one.

        Exact, as if all samples had been learnt with these labels: what a class adds to the sums is a
        column of its own, and columns are added up. Of classes that become one, what probabilities and
        novelty are scaled by was measured while they were apart.

        Parameters
        ----------
        labels : mapping
            The new label of each class that gets one; the others keep theirs.

        Examples
        --------
        >>> import numpy as np
        >>> from acil import ACILClassifier
        >>> clf = ACILClassifier(expansion_size=8).fit(np.eye(3), ["cat", "dog", "tabby"])
        >>> clf.rename_classes({"tabby": "cat", "dog": "hound"}).classes_.tolist()
        ['cat', 'hound']
        >>> clf.class_count_
        array([2, 1])
        """
        with holding(self, counted=True) as state:
            state.model.learner  # noqa: B018 (raises if the model can only predict)
            renamed = state.classes.tolist()
            if labels:
                old, new = (check_labels(list(part)) for part in (labels.keys(), labels.values()))
                check_same_kind(check_declared(None, new), state.classes)
                check_same_kind(old, state.classes)
                for column, label in zip(columns_of(old, state.classes).tolist(), new, strict=True):
                    renamed[column] = label.item()
            self._state = state.renamed(check_labels(renamed))
        return self

    def sums(self, projection: bool = True) -> ModelSums:
        """Return the sums over all samples learnt, as arrays, without solving.

        For whoever computes, stores or sends parts of a model by other means: sums of different samples
        add up, and `from_sums` and `add_sums` take them back. ``solver="gram"`` only.

        Parameters
        ----------
        projection : bool, default=True
            Whether to add the random expansion. Without it, whoever takes the sums draws it again from
            the seed, or has a model with it (``like``), and its hash is compared.
        """
        with holding(self, counted=True) as state:
            names = getattr(self, "feature_names_in_", None)
            network = getattr(self, "backbone_", None)
            return state.sums(check_parameters(self), network, names, projection)

    def add_sums(self, sums: ModelSums) -> Self:
        """Add sums over other samples, as if this model had seen these samples too.

        They are checked like any input: their shapes, their numbers, whether they are of the same
        features and expansion, and whether any samples can have them. A model that has learnt nothing
        takes the expansion and scale of the sums. Sums of private releases are refused by all others.

        Parameters
        ----------
        sums : ModelSums
            Made by `sums`, or elsewhere. γ and settings of this model stay.
        """
        settings = check_parameters(self)
        if not isinstance(sums, ModelSums):
            raise InputError(
                f"add_sums needs ModelSums, as sums() makes them, got {type(sums).__name__}."
            )
        with lock_of(self), plain_torch():
            if self.__sklearn_is_fitted__():
                state, new = learnt_of(self), self
                state.model.require_whole()
                state.model.ridge.flush()
            else:
                state, new = empty_for(settings, sums), draft_of(self)
                new.n_features_in_ = sums.n_features
                for name, value in (
                    ("feature_names_in_", sums.feature_names),
                    ("backbone_", sums.backbone),
                ):
                    if value is not None and not hasattr(new, name):
                        is_names = name == "feature_names_in_"
                        setattr(new, name, np.array(value, dtype=object) if is_names else value)
            origin_of(new, state).require_same(sums.origin)
            if not sums.private:
                state.require_enough(
                    sums.classes, np.asarray(sums.counts), settings["min_class_samples"]
                )
            adopt(self, state.with_sums(sums), new)
        return self

    @classmethod
    def from_sums(cls, sums: ModelSums, like: ACILClassifier | None = None) -> Self:
        """Return a model that has learnt the samples of these sums.

        Parameters
        ----------
        sums : ModelSums
            Those of a private release give that release again.
        like : ACILClassifier, optional
            Whose settings, expansion and network to use, of sums that were sent without. By default
            they are those of the sums.
        """
        if not isinstance(sums, ModelSums):
            raise InputError(f"from_sums needs ModelSums, got {type(sums).__name__}.")
        if like is None:
            if unknown := sums.parameters.keys() ^ PARAMETERS.keys():
                raise InputError(f"The sums' parameters lack or have too many: {sorted(unknown)}.")
            return cls(**sums.parameters).add_sums(sums)
        new = cls(**like.get_params())
        if like.__sklearn_is_fitted__():
            if hasattr(like, "backbone_"):
                new.backbone_ = like.backbone_
            known = learnt_of(like)
            expansion = known.model.expansion
            if known.scaling is not None:
                new.standardize = known.scaling.numpy().copy()
            new.random_state = known.seed
            sums = replace(
                sums,
                projection=None if expansion.projection is None else expansion.projection.numpy(),
                bias=None if expansion.bias is None else expansion.bias.numpy(),
                linear=expansion.linear,
            )
        return new.add_sums(sums)

    def solve(self) -> Self:
        """Solve from the sums alone, with a new choice of γ if ``gamma="auto"``.

        Needed only to have it now: weights are solved when they are first used. Few samples that come
        later correct the weights, with γ as it is, until the next solution. A ``class_balance`` that was
        set since is in force from now on.
        """
        with holding(self) as state:
            ridge = state.model.ridge
            # Without its factor, whose memory is about to be used again
            ridge.drop_factor()
            fresh = ridge.with_gamma(ridge.gamma)
            fresh.solve()
            model = state.model.with_head(fresh)
            model.mixer = rebalanced(model.mixer, self.class_balance)
            self._state = replace(state, model=model)
        return self

    def select_gamma(self, gammas: Any = None) -> float:
        """Choose γ by generalized cross-validation over the stored sums, and keep it; no data is needed.

        On data that the backbone was trained on the criterion is optimistic: prefer sums of other data.

        Parameters
        ----------
        gammas : array-like of shape (k,), optional
            Candidates. By default half decades from 1e-6 to 10 times trace(gram) / d. Candidates under
            which the model fits its samples all but exactly are left out.

        Returns
        -------
        float
            The chosen γ, also in ``gamma_``.
        """
        with holding(self) as state:
            dtype = state.model.precision.name
            candidates = None if gammas is None else check_candidates(gammas, dtype)
            return self._set_gamma(state, state.model.ridge.best_gamma(candidates))

    def set_gamma(self, gamma: float, relative: bool = False) -> float:
        """Use another γ from now on; the weights follow from the stored sums, no data is needed.

        Parameters
        ----------
        gamma : float
            Finite and not negative.
        relative : bool, default=False
            Give γ in units of trace(gram) / d, as ``gamma_relative_`` has it.

        Returns
        -------
        float
            The γ in use, also in ``gamma_``.
        """
        with holding(self) as state:
            dtype = state.model.precision.name
            value = check_gamma(gamma, dtype)
            return self._set_gamma(
                state, check_gamma(value * state.gamma_unit(), dtype) if relative else value
            )

    @sized(_work)
    @plain_torch()
    def decision_function(self, X: Any) -> Any:
        """Return the scores of each class.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, n_features)

        Returns
        -------
        ndarray or Tensor of shape (n, n_classes), or (n,) for two classes
            Estimates of the one-hot targets; for two classes the score of the second minus that of
            the first. A class without samples scores −inf. Tensors come back on the device of X.
        """
        rows = check_query(self, X)
        state, weights = self._scoring()
        scores = _like(rows, state.model.scores(state.features(rows), weights))
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    @sized(_work)
    @plain_torch()
    def predict(self, X: Any) -> Any:
        """Return the label with the highest score of each row.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n,)
            A Tensor when X is one and the labels are numbers.
        """
        rows = check_query(self, X)
        state, weights = self._scoring()
        scores = state.model.scores(state.features(rows), weights)
        highest, best = map(torch.cat, zip(*(block.max(dim=1) for block in scores), strict=True))
        require_numbers(highest)
        labels = state.classes[best.cpu().numpy()]
        if rows.tensor_device is None or labels.dtype.kind == "U":
            return labels
        return torch.from_numpy(labels).to(rows.tensor_device)

    @sized(_work)
    @plain_torch()
    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities, of shape (n, n_classes): a softmax of the scores.

        They rank like the scores. With ``scores="discriminant"`` the temperature of the softmax is the
        best one for the samples learnt, each scored as if it had been left out when it was learnt; for
        each row it is 1 + s times that, s being its highest score if that is positive. With
        ``scores="ridge"`` it is an estimate from the sums.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, n_features)
        """
        rows = check_query(self, X)
        with holding(self, counted=True) as state:
            weights = state.model.weights()
            probabilities = state.probabilities(state.model.scores(state.features(rows), weights))
        return _like(rows, probabilities)

    @sized(_work)
    def novelty(self, X: Any) -> Any:
        """Return the leverage xᵀRx of each row, of shape (n,): high for rows unlike anything learnt.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, n_features)
        """
        rows = check_query(self, X)
        with holding(self) as state:
            blocks = map(state.model.expansion, state.features(rows))
            return state.model.ask(lambda head: _like(rows, map(head.leverage, blocks)))

    @sized(_work)
    def relative_novelty(self, X: Any) -> Any:
        """Return how unlike everything learnt each row is, of shape (n,): above 1 is unknown.

        The squared distance to the nearest class, in the metric of the scatter within classes, relative
        to the length of the row and to how much nearer that class is than the centre of all. It grows
        along every ray that leaves the classes, and follows from the sums. It is scaled so that 5 % of
        the samples learnt would be above 1 if each were left out; with ``scores="ridge"``, which leaves
        none out, by what is typical.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, n_features)
        """
        rows = check_query(self, X)
        with holding(self, counted=True) as state:
            return _like(rows, map(state.novelty, state.features(rows)))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of ``predict(X)``, between 0 and 1; arguments as in `partial_fit`."""
        # Here, because it brings half of scikit-learn, which learning and predicting do not need.
        from sklearn.metrics import accuracy_score

        predicted = self.predict(X)
        if isinstance(predicted, Tensor):
            predicted = predicted.cpu().numpy()
        return float(accuracy_score(check_labels(y), predicted, sample_weight=sample_weight))

    def copy(self) -> Self:
        """Return an independent copy, in the time it takes to copy the sums."""
        with holding(self, counted=True) as state:
            new, model = draft_of(self), copy(state.model)
            if not isinstance(model.head, Frozen):
                model.head = model.head.clone()
            new._state = replace(state, classes=state.classes.copy(), model=model)
        return new

    def compact(self, memory: bool = True) -> Self:
        """Give back memory that can be computed again: the factor, and with it half of all memory.

        The next call that needs it factorizes again, so use this between phases that lie far apart.
        Every trace of recent single samples that is not in the sums is dropped too.

        Parameters
        ----------
        memory : bool, default=True
            With False only the traces are dropped, and the next factor finds its memory in place.
        """
        if self.__sklearn_is_fitted__():
            with holding(self, counted=True) as state:
                state.model.drop_factor(memory)
        return self

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes of each part of the model, as a file has them; one triangle of a matrix."""
        model = learnt_of(self).model
        d, c, number = model.expansion.size, len(self.classes_), model.precision.sums.itemsize
        triangle, matrix = d * (d + 1) // 2 * number, d * c * number
        sums = {"gram": triangle, "moment": matrix, "total": d * number}
        kept = {"gram": sums, "recursive": {"rfaum": triangle}}
        parts = {"coef": matrix, "intercept": c * number, **kept.get(model.head.solver, {})}
        if model.expansion.projection is not None:
            parts["projection"] = model.expansion.projection.numel() * 4
        return parts

    @property
    def classes_(self) -> Labels:
        """Labels seen or declared, sorted, of shape (n_classes,)."""
        return learnt_of(self).classes

    @property
    def coef_(self) -> npt.NDArray[Any]:
        """Weights of shape (n_classes, d), solved when first needed."""
        return self._scoring()[1].coef.mT.cpu().numpy().copy()

    @property
    def intercept_(self) -> npt.NDArray[Any]:
        """Intercepts of shape (n_classes,): zeros unless ``fit_intercept`` or discriminants."""
        return self._scoring()[1].intercept.cpu().numpy().copy()

    @property
    def class_count_(self) -> npt.NDArray[np.int64]:
        """Number of samples of each class, of shape (n_classes,)."""
        with holding(self) as state:
            return state.model.head.counts.numpy().copy()

    @property
    def n_samples_(self) -> int:
        """Number of samples learnt."""
        return int(self.class_count_.sum())

    @property
    def gamma_(self) -> float:
        """The γ in use."""
        with holding(self) as state:
            return state.model.gamma()

    @property
    def gamma_relative_(self) -> float:
        """γ / (trace(gram) / d), which can be compared between data sets; ``solver="gram"`` only."""
        with holding(self) as state:
            unit = state.gamma_unit()
            return state.model.gamma() / unit if unit else math.inf

    @property
    def condition_(self) -> float:
        """Estimate of the condition number κ of gram + γI."""
        with holding(self) as state:
            return condition(state.model)

    @property
    def scaling_(self) -> npt.NDArray[Any] | None:
        """What is taken from each feature, and what it is divided by then; None if nothing is."""
        scaling = learnt_of(self).scaling
        return None if scaling is None else scaling.numpy().copy()

    @property
    def temperature_(self) -> float:
        """Temperature of the softmax in ``predict_proba``."""
        with holding(self, counted=True) as state:
            return state.temperature()

    @sized(_work)
    @plain_torch()
    def _learn(self, X: Any, y: Any, classes: Any, sample_weight: Any, fresh: bool) -> Self:
        settings = check_parameters(self)
        with lock_of(self):
            fresh = fresh or not self.__sklearn_is_fitted__()
            # What scikit-learn notes of the features of X is not this model's before the state is.
            new = draft_of(self) if fresh else self
            samples = check_samples(new, X, y, sample_weight, first=fresh)
            rows, labels, weights = samples
            declared = check_declared(classes, labels)
            if fresh:
                seed, scaling = self._drawn_with(settings, rows, weights)
                state = Learnt.new(
                    *(settings, labels[:0], rows.n_features, seed, scaling, rows.names),
                    release=ledger_before(self),
                    first=samples,
                )
                state.check_scale(samples)
            else:
                state = learnt_of(self)
                state.model.require_whole()
            state.check(samples)
            if settings["min_class_samples"] > 1:
                learnt = labels if weights is None else labels[weights.numpy() > 0]
                state.require_enough(
                    *np.unique(learnt, return_counts=True), settings["min_class_samples"]
                )
            adopt(self, state.learned(samples, declared), new)
            if state.counts_at_once(samples):
                # Count how these samples score when they are left out.
                with holding(self) as after:
                    self._state = after.counted(samples, before=state)
        return self

    def _drawn_with(
        self, settings: dict[str, Any], rows: Rows, weights: Tensor | None
    ) -> tuple[int, Tensor | None]:
        """Return the seed of a new model, and how it scales its features."""
        seed, scaling = resolve_seed(self.random_state), given_scaling(settings)
        if scaling is not None and scaling.shape[1] != rows.n_features:
            raise InputError(
                f"standardize has means and deviations of {scaling.shape[1]} features, but X has "
                f"{rows.n_features}."
            )
        always = settings["standardize"] is True
        # With a clip norm nothing may depend on single samples but their sums; streams begin with one.
        sums_only = settings["clip_norm"] is not None or rows.names is not None
        automatic = settings["standardize"] == "auto" and not sums_only
        asked = automatic and scores_of(settings) != "ridge"
        if scaling is None and (always or asked):
            rows.check_finite(math.inf)
            scaling = rows.scaling(weights, always)
        return seed, scaling

    def _set_gamma(self, state: Learnt, gamma: float) -> float:
        head = state.model.ridge.with_gamma(gamma)
        self._state = replace(state, model=state.model.with_head(head))
        return gamma

    def _scoring(self) -> tuple[Learnt, Weights]:
        """Return state and weights for prediction, which never wait for another thread that learns.

        They do wait if the weights have not been solved for yet.
        """
        state = learnt_of(self)
        weights, lock = state.model.ready, lock_of(self)
        if weights is not None:
            if state.model.is_whole or not lock.acquire(blocking=False):
                # The matrix is just being written: these are the weights from before.
                return state, weights
            lock.release()
        with holding(self) as state:
            return state, state.model.weights()

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether there is anything to predict with."""
        state: Learnt | None = self.__dict__.get("_state")
        return state is not None and state.model.has_samples

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is derived from recent rows, and what another thread may be changing."""
        whole = self.copy() if self.__sklearn_is_fitted__() else self
        content: dict[str, Any] = BaseEstimator.__getstate__(whole)
        return content


# The door for the rest of acil: nobody else reads or writes a name of a classifier with an underscore.


def learnt_of(clf: ACILClassifier) -> Learnt:
    """Return what a classifier has learnt, without waiting; raise if that is nothing."""
    if not clf.__sklearn_is_fitted__():
        raise _UnfittedError(
            "This ACILClassifier has not learnt anything yet. Call 'fit' or 'partial_fit' first."
        )
    return clf._state


def lock_of(clf: ACILClassifier) -> threading.RLock:
    """Return the lock for whoever changes a classifier, or reads the matrix that is written in place."""
    return _LOCKS.setdefault(clf, threading.RLock())


@contextmanager
def holding(clf: ACILClassifier, counted: bool = False) -> Iterator[Learnt]:
    """Hold the lock of a classifier and yield what it has learnt, after making sure that it is whole.

    ``counted`` says whether all samples must be in its calibration.
    """
    with lock_of(clf), plain_torch():
        state = learnt_of(clf)
        state.model.require_whole()
        if counted and state.uncounted:
            clf._state = state = state.counted()
        yield state


def draft_of(clf: _Classifier) -> _Classifier:
    """Return another object with the same content, which may change while the classifier does not."""
    new = type(clf).__new__(type(clf))
    new.__dict__.update(clf.__dict__)
    return new


#: What a classifier knows of its features
_OF_FEATURES = ("n_features_in_", "feature_names_in_", "backbone_")


def adopt(clf: ACILClassifier, learnt: Learnt, draft: ACILClassifier | None = None) -> None:
    """Replace what a classifier has learnt, and by what a draft of it knows, what it knows of features.

    One call sets all attributes, so that another thread or an interrupt finds all of it or nothing.
    """
    known = (clf if draft is None else draft).__dict__
    features = {name: known[name] for name in _OF_FEATURES if name in known}
    with lock_of(clf):
        clf.__dict__.update(features, _state=learnt)
        if "feature_names_in_" not in features:
            clf.__dict__.pop("feature_names_in_", None)


def ledger_before(clf: ACILClassifier) -> dict[str, Any] | None:
    """Return the releases of what a classifier knew before it begins anew: perhaps the same samples."""
    before: Learnt | None = clf.__dict__.get("_state")
    return None if before is None else before.release


def check_samples(
    clf: ACILClassifier, X: Any, y: Any, sample_weight: Any = None, first: bool = False
) -> Samples:
    """Check samples, except for their values; the first ones set what a classifier knows of features."""
    rows = _check_width(clf, X, first)
    labels = check_labels(y)
    if len(rows) != len(labels):
        raise InputError(
            f"X has {len(rows)} rows, but y has {len(labels)} labels (inconsistent numbers of "
            "samples). Give one label for each row."
        )
    return Samples(rows, labels, check_weights(sample_weight, rows))


def check_query(clf: ACILClassifier, X: Any) -> Rows:
    """Check rows that a classifier is asked about."""
    state = learnt_of(clf)
    rows = _check_width(clf, X, first=False)
    state.check_values(rows)
    return rows


def _check_width(clf: ACILClassifier, X: Any, first: bool) -> Rows:
    try:
        return check_rows(clf, X, first)
    except InputError as error:
        name = getattr(clf, "backbone_", {}).get("name")
        if name is None or "features" not in str(error):
            raise
        raise InputError(f"{error} Extract features with the same backbone ({name!r}).") from None


def origin_of(clf: ACILClassifier, state: Learnt | None = None) -> Origin:
    """Return what sums must have the same to be added to those of a classifier."""
    state = learnt_of(clf) if state is None else state
    return state.origin(getattr(clf, "backbone_", None), getattr(clf, "feature_names_in_", None))


def _like(rows: Rows, blocks: Iterable[Tensor]) -> Any:
    values = require_numbers(torch.cat(list(blocks)))
    if rows.tensor_device is not None:
        return values.to(rows.tensor_device)
    return values.cpu().numpy()
