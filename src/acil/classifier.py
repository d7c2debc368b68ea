"""ACILClassifier: the scikit-learn face of the closed-form learner."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from torch import Tensor

from acil.errors import InputError
from acil.fitted import FittedClassifier
from acil.inputs import Rows, check_weights
from acil.labels import Labels, check_declared, check_labels, check_same_kind, columns_of
from acil.parameters import check_candidates, check_gamma, check_parameters, new_model, resolve_seed
from acil.state import State

__all__ = ["FEATURE_ATTRIBUTES", "ACILClassifier", "State"]

#: What scikit-learn keeps of the features of X.
FEATURE_ATTRIBUTES = ("n_features_in_", "feature_names_in_")


class ACILClassifier(FittedClassifier):
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
        state.check_values(rows)
        check_same_kind(labels, state.classes)
        columns = columns_of(labels, state.classes)
        state.require_learnt(columns, weights)
        declared = head.counts == 0
        state.model.forget(state.features(rows), columns, weights)
        state.keep((head.counts > 0) | declared)
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
        mine.require_same_expansion(theirs)
        backbones = [getattr(model, "backbone_", None) for model in (self, other)]
        if backbones[0] != backbones[1]:
            raise InputError(
                f"The models were fitted on features of different backbones ({backbones[0]} and "
                f"{backbones[1]}): their sums cannot be added."
            )
        check_same_kind(theirs.classes, mine.classes)
        mine.grow(theirs.classes)
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
        return state.model.select_gamma(None if gammas is None else check_candidates(gammas))

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
        return state.model.set_gamma(check_gamma(gamma), relative)

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
            state.check_values(rows)
            state.grow(declared)
            columns = columns_of(labels, state.classes)
            state.interrupted = True
            state.model.learn(state.features(rows), columns, weights, len(rows))
            state.interrupted = False
        except BaseException:
            for name in FEATURE_ATTRIBUTES:
                self.__dict__.pop(name, None)
            self.__dict__.update(before)
            raise
        self._state = state
        return self

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
