"""What a classifier answers once it has learnt: scores, labels, novelty and its fitted attributes."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from torch import Tensor

from acil.errors import InputError, InterruptedModelError, NotFittedError
from acil.inputs import Rows, check_rows
from acil.labels import Labels, check_labels
from acil.state import State


class _Unfitted(NotFittedError, SklearnNotFittedError):  # type: ignore[misc]
    """What code written for scikit-learn expects from a model that has learnt nothing."""


class FittedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier around a state that was learnt; everything here leaves it as it is."""

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
        scores = torch.cat(list(state.model.scores(state.features(rows))))
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
        scores = state.model.scores(state.features(rows))
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
        scores = state.model.scores(state.features(rows))
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
        return _like(rows, torch.cat(list(state.model.novelty(state.features(rows)))))

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
        return _like(rows, torch.cat(list(state.model.relative_novelty(state.features(rows)))))

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

    def copy(self) -> Self:
        """Return an independent copy, in the time it takes to copy the sums.

        This model is not changed, so that other threads may go on predicting with it.
        """
        state = self._require_state()
        model = state.model.copy()
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._state = State(state.classes.copy(), model, state.seed)
        return twin

    def compact(self, memory: bool = True) -> Self:
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

    def _check_query(self, X: Any) -> tuple[State, Rows]:
        state = self._require_state()
        rows = self._check_width(X, reset=False)
        state.check_values(rows)
        return state, rows

    def _check_width(self, X: Any, reset: bool) -> Rows:
        try:
            return check_rows(self, X, reset)
        except InputError as error:
            name = getattr(self, "backbone_", {}).get("name")
            if name is None or "features" not in str(error):
                raise
            raise InputError(f"{error} Extract features with the same backbone ({name!r}).") from None

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
