"""`RiverClassifier`: an `ACILClassifier` for streams of dicts, as the package river has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from acil.core.classifier import ACILClassifier, adopt, draft_of, learnt_of, lock_of
from acil.core.inputs import Rows
from acil.errors import InputError, MissingExtraError
from acil.extras import install

try:
    from river.base import Classifier
except ImportError:  # told when it is used
    Classifier = None


class RiverClassifier(Classifier or object):  # type: ignore[misc]
    """A classifier of river that learns one sample after another and equals learning all at once.

    Parameters
    ----------
    model : ACILClassifier
        Learns what this one is given. New classes may come at any time. It has learnt nothing, or knows
        the names of its features, as one that a stream has taught and a file has kept.

    Notes
    -----
    Features may come and go. One that a sample lacks is 0 in it, and one that comes later was 0 in all
    samples before: without an expansion, the sums get a row and a column of zeros; with one, W_fe gets a
    row, which the name and ``random_state`` decide. So the order of features does not matter, neither in
    a dict nor in the stream; but W_fe is another one than for arrays, whose columns have no names. A
    feature that was never learnt does not count in a prediction. Features are known by their names as
    text.
    """

    def __init__(self, model: ACILClassifier) -> None:
        if Classifier is None:
            raise MissingExtraError(
                f"RiverClassifier needs the package river. Install it with: {install('river')}"
            )
        if model.__sklearn_is_fitted__() and not hasattr(model, "feature_names_in_"):
            raise InputError("Give a model that has learnt nothing, or knows the names of its features.")
        if model.standardize is True and not model.__sklearn_is_fitted__():
            raise InputError(
                "standardize=True takes the scale of the first call, which is one sample here. Use "
                "river.preprocessing.StandardScaler before this model."
            )
        self.model = model

    @property
    def _multiclass(self) -> bool:
        return True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        """Yield what river's checks make models of."""
        yield {"model": ACILClassifier(expansion_size=None)}
        yield {"model": ACILClassifier(expansion_size=64)}

    @classmethod
    def _unit_test_skips(cls) -> set[str]:
        """Name the one of river's checks that cannot pass: it compares two pickles of a model.

        They are never the same, because torch writes into them where in memory a tensor was.
        """
        return {"check_no_state_aliasing_with_input"}

    def clone(self, new_params: dict[str, Any] | None = None, **options: Any) -> RiverClassifier:
        """Return one with the same settings that has learnt nothing; river's options are ignored."""
        return type(self)((new_params or {}).get("model") or clone(self.model))

    def learn_one(self, x: dict[Any, float], y: Any) -> None:
        """Learn one sample: the number of each feature, and the label."""
        values, label = _numbers(x), np.array([y])
        with lock_of(self.model):
            known = self._names()
            new = sorted(values.keys() - set(known))
            # Another object, so that nothing has changed if the sample is refused
            model = draft_of(self.model)
            if not known:
                model.partial_fit(_rows(values, new), label)
            else:
                if new:
                    adopt(model, learnt_of(model).widened(new))
                    model.feature_names_in_ = np.array([*known, *new], dtype=object)
                    model.n_features_in_ = len(known) + len(new)
                model.partial_fit(_rows(values, [*known, *new]), label)
            adopt(self.model, learnt_of(model), model)

    def predict_proba_one(self, x: dict[Any, float], **options: Any) -> dict[Any, float]:
        """Return the probability of each class; nothing before the first sample. Options are ignored."""
        values = _numbers(x)
        with lock_of(self.model):
            known = self._names()
            if not known:
                return {}
            probabilities = self.model.predict_proba(_rows(values, known))[0].tolist()
            return dict(zip(self.model.classes_.tolist(), probabilities, strict=True))

    def _names(self) -> list[str]:
        """Return the names of the features learnt, in the order of the model's columns."""
        return list(self.model.feature_names_in_) if self.model.__sklearn_is_fitted__() else []


def _numbers(x: dict[Any, float]) -> dict[str, float]:
    """Return the number of each feature, by its name as text."""
    values = {}
    for name, value in x.items():
        try:
            values[str(name)] = float(value)
        except (TypeError, ValueError):
            raise InputError(
                f"The feature {name!r} is {value!r}, which is no number. Encode it, for example with "
                "river.preprocessing.OneHotEncoder."
            ) from None
    if len(values) < len(x):
        raise InputError("Two features have the same name as text. Rename one of them.")
    return values


def _rows(values: dict[str, float], names: Sequence[str]) -> Rows:
    """Return one row with the values of these features, 0 where there is none."""
    if not names:
        raise InputError("The first sample has no features. Give at least one.")
    return Rows(np.array([[values.get(name, 0.0) for name in names]]), names)
