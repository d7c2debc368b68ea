"""ACILClassifier: the scikit-learn face of the closed-form learner."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from torch import Tensor

from acil.analytic import AnalyticModel, Repeatable
from acil.errors import InputError, InterruptedModelError, NotFittedError
from acil.inputs import Rows, check_rows, check_weights, input_errors
from acil.labels import Labels, check_declared, check_labels, check_same_kind, columns_of, union
from acil.parameters import check_parameters, new_model, resolve_seed

#: What scikit-learn keeps of the features of X.
FEATURE_ATTRIBUTES = ("n_features_in_", "feature_names_in_")


class _Unfitted(NotFittedError, SklearnNotFittedError):  # type: ignore[misc]
    """What code written for scikit-learn expects from a model that has learnt nothing."""


@dataclass
class State:
    """Everything learnt, in one object: solving lazily must not change the estimator itself.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        Labels, sorted; label i is column i of the model.
    model : AnalyticModel
    seed : int
        Seed that the expansion was drawn with.
    interrupted : bool
        True while samples are being added, and for good if that was interrupted.
    """

    classes: Labels
    model: AnalyticModel
    seed: int
    interrupted: bool = False


class ACILClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifier that learns new classes in closed form, forgets nothing and keeps no sample.

    A random expansion followed by ridge regression onto one-hot labels. Learning in phases, in any
    order and grouping, gives the weights of learning everything at once (up to rounding, see *Notes*).

    Parameters
    ----------
    expansion_size : int or None, default=2048
        Width d of the random expansion; ``None`` uses the features as they are.
    gamma : float or "auto", default=0.1
        Ridge strength γ ≥ 0. It means something only relative to the scale of the features (see
        ``gamma_relative_``). ``"auto"`` selects it once, by generalized cross-validation over the
        sums, when weights are first needed.
    activation : {"relu", "tanh", "gelu", "identity"}, default="relu"
        Function applied to the expanded features.
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
    class_balance : bool, default=False
        Scale the weights of each class by (mean class weight) / (its class weight), so that frequent
        classes do not win by their number alone. Done from the sums, without data.
    sums : {"auto", "extended"}, default="auto"
        ``"auto"`` keeps the sums with twice the digits where rounding could show in scores. Models wider
        than 512 may drop these digits when samples make them needless, and miss them when most
        samples are forgotten later (`PrecisionWarning` says so). ``"extended"`` keeps them for good, at
        four times the work of plain sums. It needs ``solver="gram"`` and ``dtype="float64"``.

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
        Estimate of the condition number κ of gram + γI.
    n_samples_ : int
        Number of samples learnt.
    n_features_in_ : int
        Number of features of X.
    temperature_ : float
        Temperature of the softmax in ``predict_proba``, from the sums.

    Notes
    -----
    The sums do not depend on phases, but floating-point addition depends on its order. Where that could
    show, sums are kept with twice the digits and the solution is refined: scores of two ways to the same
    model agree to 1e-9 while κ ≤ 1e9.

    The head can forget samples exactly. A backbone that was trained on them does not.

    Examples
    --------
    >>> import numpy as np
    >>> from acil import ACILClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 4)) + np.repeat(np.eye(3, 4) * 6, 20, axis=0)
    >>> y = np.repeat(["cat", "dog", "owl"], 20)
    >>> phased = ACILClassifier(expansion_size=64, gamma=1.0)
    >>> phased.partial_fit(X[:40], y[:40]).partial_fit(X[40:], y[40:]).score(X, y)
    1.0
    >>> joint = ACILClassifier(expansion_size=64, gamma=1.0).fit(X, y)
    >>> bool(np.allclose(phased.coef_, joint.coef_, rtol=0, atol=1e-10))
    True
    """

    def __init__(
        self,
        expansion_size: int | None = 2048,
        gamma: float | Literal["auto"] = 0.1,
        activation: Literal["relu", "tanh", "gelu", "identity"] = "relu",
        solver: Literal["gram", "recursive"] = "gram",
        dtype: Literal["float64", "float32", "mixed"] = "float64",
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        fit_intercept: bool = False,
        class_balance: bool = False,
        sums: Literal["auto", "extended"] = "auto",
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
        self.sums = sums

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ACILClassifier:
        """Learn from scratch.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, n_features)
        y : array-like or Tensor of shape (n,)
        sample_weight : array-like of shape (n,), optional

        Returns
        -------
        self
        """
        return self._learn(X, y, None, sample_weight, fresh=True)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> ACILClassifier:
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
            A sample of weight 2 counts like two samples, one of weight 0 like none.

        Returns
        -------
        self
        """
        return self._learn(X, y, classes, sample_weight, fresh=not self.__sklearn_is_fitted__())

    def forget(self, X: Any, y: Any, sample_weight: Any = None) -> ACILClassifier:
        """Remove samples: the head becomes the one that never learnt them.

        A class whose samples are all forgotten leaves ``classes_``. That samples were never learnt
        cannot be detected in general. What can be is an error that changes nothing: an unknown class,
        more samples of a class than were learnt, sums that no set of samples can have.

        This is exact for the head. Samples that the backbone was trained on stay in the backbone.

        Parameters
        ----------
        X, y, sample_weight
            As given when they were learnt.

        Returns
        -------
        self
        """
        state = self._require_state()
        head = state.model.learner()
        rows, labels, weights = self._check_samples(X, y, sample_weight, reset=False)
        self._check_values(rows, state.model)
        check_same_kind(labels, state.classes)
        columns = columns_of(labels, state.classes)
        counted = columns if weights is None else columns[weights > 0]
        asked = torch.bincount(counted, minlength=len(state.classes))
        for column in torch.nonzero(asked > head.counts).flatten().tolist():
            raise InputError(
                f"Cannot forget {int(asked[column])} samples of {state.classes[column].item()!r}: only "
                f"{int(head.counts[column])} were learnt."
            )
        if weights is not None:
            heavy = torch.bincount(columns, weights, minlength=len(state.classes))
            # Sums of weights round; anything beyond that was never learnt.
            for column in torch.nonzero(heavy > head.weights * (1 + 1e-9)).flatten().tolist():
                raise InputError(
                    f"Cannot forget a weight of {float(heavy[column]):g} of "
                    f"{state.classes[column].item()!r}: only {float(head.weights[column]):g} was learnt."
                )
        declared = head.counts == 0
        state.model.forget(self._features(state, rows), columns, weights)
        kept = (head.counts > 0) | declared
        if not bool(kept.all()):
            head.keep(torch.nonzero(kept).flatten())
            state.classes = state.classes[kept.numpy()]
        return self

    def merge(self, other: ACILClassifier) -> ACILClassifier:
        """Add everything another model has learnt, as if this one had seen its samples too.

        The sums have all digits beyond float64 only if those of both models have them: what one of them
        has rounded stays rounded. A model with ``sums="extended"`` goes on with the digits that there
        are, and gives a `PrecisionWarning` when the other one has none.

        Parameters
        ----------
        other : ACILClassifier
            Fitted with the same expansion and the same backbone; it is not changed. This model's γ and
            settings stay.

        Returns
        -------
        self
        """
        if not isinstance(other, ACILClassifier):
            raise InputError(f"merge needs another ACILClassifier, got {type(other).__name__}.")
        mine, theirs = self._require_state(), other._require_state()
        mine.model.require_sums()
        theirs.model.require_sums()
        self._check_mergeable(other)
        check_same_kind(theirs.classes, mine.classes)
        self._grow(mine, theirs.classes)
        mine.model.merge(theirs.model, columns_of(theirs.classes, mine.classes))
        return self

    def select_gamma(self, gammas: Any = None) -> float:
        """Choose γ by generalized cross-validation over the stored sums; no data is needed.

        On data that the backbone was trained on the criterion is optimistic: prefer sums of other data.

        Parameters
        ----------
        gammas : array-like of shape (k,), optional
            Candidates. By default half decades from 1e-6 to 1e4 times trace(gram) / d. Candidates under
            which the model fits its samples exactly are left out, with a warning.

        Returns
        -------
        float
            The chosen γ, also in ``gamma_``.
        """
        state = self._require_state()
        state.model.require_sums()
        candidates = None
        if gammas is not None:
            with input_errors():
                if isinstance(gammas, Tensor):
                    gammas = gammas.detach().cpu().numpy()
                candidates = torch.from_numpy(np.array(gammas, dtype=np.float64).reshape(-1))
            valid = torch.isfinite(candidates) & (candidates >= 0)
            if not len(valid) or not bool(valid.all()):
                raise InputError("gammas must be finite numbers that are not negative, at least one.")
        return state.model.select_gamma(candidates)

    def set_gamma(self, gamma: float, relative: bool = False) -> float:
        """Use another γ from now on; the weights follow from the stored sums, no data is needed.

        Parameters
        ----------
        gamma : float
            Finite and not negative.
        relative : bool, default=False
            Give γ in units of the mean squared length of an (expanded) sample, trace(gram) / n. The
            result depends on the sums alone: it is the same for any order of learning and merging.

        Returns
        -------
        float
            The γ in use, also in ``gamma_``.
        """
        state = self._require_state()
        if isinstance(gamma, bool) or not isinstance(gamma, Real) or not 0 <= float(gamma) < np.inf:
            raise InputError(f"gamma must be a finite number that is not negative. Got {gamma!r}.")
        return state.model.set_gamma(float(gamma), relative)

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
        state, rows = self._check_query(X)
        scores = torch.cat(list(state.model.scores(self._features(state, rows))))
        return _like(rows, scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores)

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
        state, rows = self._check_query(X)
        scores = state.model.scores(self._features(state, rows))
        best = torch.cat([block.argmax(dim=1).cpu() for block in scores])
        labels = state.classes[best.numpy()]
        if rows.tensor_device is None or labels.dtype.kind == "U":
            return labels
        return torch.from_numpy(labels).to(rows.tensor_device)

    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities: a softmax of the scores, at a temperature from the sums.

        They rank like the scores and are meant for people; they are calibrated only as far as scores
        of new samples scatter like those of the samples learnt.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, n_features)

        Returns
        -------
        ndarray or Tensor of shape (n, n_classes)
        """
        state, rows = self._check_query(X)
        heat = state.model.temperature()
        scores = state.model.scores(self._features(state, rows))
        return _like(rows, torch.cat([torch.softmax(block / heat, dim=1) for block in scores]))

    def novelty(self, X: Any) -> Any:
        """Return the leverage xᵀRx of each row: high for rows unlike anything learnt.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, n_features)

        Returns
        -------
        ndarray or Tensor of shape (n,)
        """
        state, rows = self._check_query(X)
        return _like(rows, torch.cat(list(state.model.novelty(self._features(state, rows)))))

    def relative_novelty(self, X: Any) -> Any:
        """Return how unlike everything learnt the direction of each row is: about 1 for rows like those.

        The leverage of the row, scaled to the mean length of those learnt, divided by the mean leverage
        that samples learnt would have if each were left out. All of it follows from the sums: it is the
        same for any order of learning, merging and forgetting.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, n_features)

        Returns
        -------
        ndarray or Tensor of shape (n,)
        """
        state, rows = self._check_query(X)
        return _like(rows, torch.cat(list(state.model.relative_novelty(self._features(state, rows)))))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of ``predict(X)``, between 0 and 1.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, n_features)
        y : array-like or Tensor of shape (n,)
        sample_weight : array-like of shape (n,), optional
        """
        # Here, because it brings half of scikit-learn, which learning and predicting do not need.
        from sklearn.metrics import accuracy_score

        predicted = self.predict(X)
        if isinstance(predicted, Tensor):
            predicted = predicted.cpu().numpy()
        return float(accuracy_score(check_labels(y), predicted, sample_weight=sample_weight))

    def copy(self) -> ACILClassifier:
        """Return an independent copy, in the time it takes to copy the sums.

        This model is not changed, so that other threads may go on predicting with it.
        """
        state = self._require_state()
        model = state.model.copy()
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._state = State(state.classes.copy(), model, state.seed)
        return twin

    def compact(self, memory: bool = True) -> ACILClassifier:
        """Give back memory that can be computed again: the factor, and with it half of all memory.

        The next call that needs it factorizes again, so use this between phases that lie far apart.
        Every trace of recent single samples that is not in the sums is dropped too.

        Parameters
        ----------
        memory : bool, default=True
            With False only the traces are dropped, and the next factor finds its memory in place.

        Returns
        -------
        self
        """
        state = self._fitted()
        if state is not None:
            state.model.head.release(memory)
        return self

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes of each part of the model, as a file of it has them.

        Returns
        -------
        dict
            Of ``gram`` (one triangle), ``moment``, ``rfaum`` (one triangle), ``coef``, ``intercept`` and
            ``projection``, those that this model has; ``gram_low``, ``moment_low`` and ``weights_low``
            where sums are kept with twice the digits.
        """
        return self._require_state().model.stored_bytes()

    @property
    def classes_(self) -> Labels:
        """Labels, sorted."""
        return self._require_state().classes

    @property
    def coef_(self) -> npt.NDArray[Any]:
        """Weights of shape (n_classes, d)."""
        return self._require_state().model.weights()[0].cpu().numpy().copy()

    @property
    def intercept_(self) -> npt.NDArray[Any]:
        """Intercepts of shape (n_classes,)."""
        return self._require_state().model.weights()[1].cpu().numpy().copy()

    @property
    def class_count_(self) -> npt.NDArray[np.int64]:
        """Number of samples of each class."""
        return self._require_state().model.head.counts.numpy().copy()

    @property
    def n_samples_(self) -> int:
        """Number of samples learnt."""
        return int(self._require_state().model.head.counts.sum())

    @property
    def gamma_(self) -> float:
        """The γ in use."""
        return self._require_state().model.gamma()

    @property
    def gamma_relative_(self) -> float:
        """γ relative to trace(gram) / d."""
        sums = self._require_state().model.require_sums()
        return self.gamma_ / sums.statistics.mean_square

    @property
    def condition_(self) -> float:
        """Estimate of the condition number of gram + γI."""
        return self._require_state().model.head.condition()

    @property
    def temperature_(self) -> float:
        """Temperature of the softmax in ``predict_proba``."""
        return self._require_state().model.temperature()

    def _learn(self, X: Any, y: Any, classes: Any, sample_weight: Any, fresh: bool) -> ACILClassifier:
        check_parameters(self)
        before = {name: self.__dict__[name] for name in FEATURE_ATTRIBUTES if name in self.__dict__}
        try:
            rows, labels, weights = self._check_samples(X, y, sample_weight, reset=fresh)
            state = self._require_state() if not fresh else None
            if state is not None:
                state.model.learner()
                check_same_kind(labels, state.classes)
            declared = check_declared(classes, labels)
            if state is None:
                seed = resolve_seed(self.random_state)
                state = State(labels[:0], new_model(self, rows.n_features, seed), seed)
            self._check_values(rows, state.model)
            self._grow(state, declared)
            columns = columns_of(labels, state.classes)
            state.interrupted = True
            state.model.learn(self._features(state, rows), columns, weights, len(rows))
            state.interrupted = False
        except BaseException:
            for name in FEATURE_ATTRIBUTES:
                self.__dict__.pop(name, None)
            self.__dict__.update(before)
            raise
        self._state = state
        return self

    @staticmethod
    def _features(state: State, rows: Rows) -> Iterable[Tensor]:
        model = state.model
        return Repeatable(lambda: rows.blocks(model.block_rows, model.precision.products, model.device))

    @staticmethod
    def _grow(state: State, labels: Labels) -> None:
        classes = union(state.classes, labels)
        if len(classes) > len(state.classes):
            state.model.head.grow(columns_of(state.classes, classes), len(classes))
            state.classes = classes

    def _check_query(self, X: Any) -> tuple[State, Rows]:
        state = self._require_state()
        rows = self._check_width(X, reset=False)
        self._check_values(rows, state.model)
        return state, rows

    def _check_samples(
        self, X: Any, y: Any, sample_weight: Any, reset: bool
    ) -> tuple[Rows, Labels, Tensor | None]:
        rows = self._check_width(X, reset=reset)
        labels = check_labels(y)
        if len(rows) != len(labels):
            raise InputError(
                f"X has {len(rows)} rows, but y has {len(labels)} labels (inconsistent numbers of "
                "samples). Give one label for each row."
            )
        return rows, labels, check_weights(sample_weight, rows)

    def _check_width(self, X: Any, reset: bool) -> Rows:
        try:
            return check_rows(self, X, reset)
        except InputError as error:
            name = getattr(self, "backbone_", {}).get("name")
            if name is None or "features" not in str(error):
                raise
            raise InputError(f"{error} Extract features with the same backbone ({name!r}).") from None

    @staticmethod
    def _check_values(rows: Rows, model: AnalyticModel) -> None:
        with input_errors():
            # |x W_fe|² ≤ ‖x‖² · (largest column norm)², and sums of it must not overflow
            limit = torch.finfo(model.precision.products).max / 1e3
            rows.check_finite(limit / max(1.0, model.expansion.column_norm() ** 2))

    def _check_mergeable(self, other: ACILClassifier) -> None:
        mine, theirs = self._require_state().model.expansion, other._require_state().model.expansion
        if mine.in_features != theirs.in_features:
            raise InputError(
                f"The models were fitted on {mine.in_features} and {theirs.in_features} features: they "
                "cannot be merged."
            )
        if mine.fingerprint() != theirs.fingerprint():
            raise InputError(
                "The models have different expansions, so their sums cannot be added. Fit both with the "
                "same expansion_size, activation and random_state."
            )
        backbones = [getattr(model, "backbone_", None) for model in (self, other)]
        if backbones[0] != backbones[1]:
            raise InputError(
                f"The models were fitted on features of different backbones ({backbones[0]} and "
                f"{backbones[1]}): their sums cannot be added."
            )

    def _fitted(self) -> State | None:
        state: State | None = self.__dict__.get("_state")
        return state

    def _require_state(self) -> State:
        state = self._fitted()
        if state is None or not self.__sklearn_is_fitted__():
            raise _Unfitted(
                "This ACILClassifier has not learnt anything yet. Call 'fit' or 'partial_fit' first."
            )
        if state.interrupted:
            raise InterruptedModelError(
                "Learning was interrupted half-way, so this model holds part of a phase. Load the last "
                "saved model, or fit again."
            )
        return state

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether there is anything to predict with."""
        state = self._fitted()
        return state is not None and int(state.model.head.counts.sum()) > 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is derived from recent rows: no copy of a model carries it."""
        state = self._fitted()
        if state is not None:
            state.model.head.release()
        content: dict[str, Any] = super().__getstate__()
        return content


def _like(rows: Rows, values: Tensor) -> Any:
    if rows.tensor_device is not None:
        return values.to(rows.tensor_device)
    return values.cpu().numpy()
