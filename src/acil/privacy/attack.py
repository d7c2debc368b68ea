"""What a model file tells about the samples it was learnt from, by trying."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acil.core.classifier import ACILClassifier, check_query, holding, origin_of
from acil.core.expansion import Expansion, Frozen
from acil.core.inputs import Rows
from acil.core.linalg import mirror_
from acil.core.recursion import Recursion
from acil.errors import InputError, UnsupportedError
from acil.privacy import SCOPE
from acil.privacy.recovery import Recovered, backbone_features, recover, recover_from_weights

#: Classes of fewer samples are named in a report.
FEW = 10
#: Largest difference of states, in samples, that the attack is tried on.
_MOST = 1000
#: Ridge of the attacker, relative to the mean eigenvalue: small, so that members stand out.
_RIDGE = {"float64": 1e-9, "mixed": 1e-6, "float32": 1e-5}
_FALSE_POSITIVES = 1e-3


@dataclass(frozen=True)
class Membership:
    """How well samples learnt are told from others.

    Attributes
    ----------
    area : float
        Area under the ROC curve; 0.5 is chance.
    found : float
        Share of true positives at 0.1 % false ones.
    """

    area: float
    found: float


@dataclass(frozen=True)
class Audit:
    """What an attacker learns from one model file, or from two.

    Attributes
    ----------
    kind : str
        ``"sums"``, or ``"weights"`` for files that can only predict.
    private : bool
        Whether the model is a differentially private release.
    few : dict of str to int
        Classes of fewer than 10 samples. The sum of a class of one sample is that sample.
    learnt : int
        Number of samples between the two states; without a previous one, all samples.
    direction : str
        ``"learnt"`` or ``"forgotten"`` between the states.
    rank : int or None
        Of the difference; None if it was not looked at.
    recovered : int
        Samples of those that were found, each confirmed by the sums.
    classes : list of str
        Class of each sample found.
    features_recovered : bool
        Whether the features of the backbone follow from them.
    rows : ndarray of shape (recovered, d)
        The expanded rows found.
    cosines : list of float
        Of each true image to the nearest row that was found, where the images are given.
    membership : dict of str to Membership
        By ``"leverage"`` and ``"score"``, where images and others are given.
    """

    kind: str
    private: bool
    few: dict[str, int]
    learnt: int
    direction: str
    rank: int | None
    recovered: int
    classes: list[str]
    features_recovered: bool
    rows: npt.NDArray[np.float64] = field(repr=False)
    cosines: list[float] = field(default_factory=list)
    membership: dict[str, Membership] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it but the rows, as JSON has it."""
        facts = {**asdict(self), "scope": SCOPE}
        del facts["rows"]
        return facts


def audit(
    model: ACILClassifier,
    previous: ACILClassifier | None = None,
    *,
    features: Any = None,
    labels: Any = None,
    others: Any = None,
    other_labels: Any = None,
) -> Audit:
    """Attack a model: find samples in it, and say whether given samples are in it.

    Parameters
    ----------
    model : ACILClassifier
    previous : ACILClassifier, optional
        An earlier state of it, or a later one from which samples were forgotten.
    features, labels : array-like of shape (n, n_features) and (n,), optional
        Samples that were learnt, between the states if there are two: the truth.
    others, other_labels : array-like, optional
        Samples that were not learnt, for the ROC of membership.

    Returns
    -------
    Audit

    Examples
    --------
    >>> import numpy as np
    >>> from acil import ACILClassifier
    >>> from acil.privacy import audit
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.random((40, 6)), np.repeat(["cat", "dog"], 20)
    >>> before = ACILClassifier(expansion_size=64, gamma=1.0).fit(X, y)
    >>> secret = rng.random((3, 6))
    >>> after = before.copy().partial_fit(secret, ["cat", "dog", "owl"])
    >>> found = audit(after, before, features=secret)
    >>> found.learnt, found.recovered, min(found.cosines) > 0.999
    (3, 3, True)
    """
    if previous is not None:
        origin_of(model).require_same(origin_of(previous))
    rows_given, unseen = (None if X is None else check_query(model, X) for X in (features, others))
    known = _Known.of(model)
    if known.expansion.projection is not None and known.expansion.activation == "gaussian":
        raise UnsupportedError(
            f"There is nothing to attack: the model holds {known.expansion.size} samples as they are, "
            'the centres of activation="gaussian". Whoever has its file has them.'
        )
    base = None if previous is None else _Known.of(previous)
    if base is not None and base.n_samples > known.n_samples:
        known, base, direction = base, known, "forgotten"
    else:
        direction = "learnt"
    learnt = known.n_samples - (0 if base is None else base.n_samples)
    rows, columns, rank = _recovered(known, base, learnt)
    expansion = known.expansion
    truth = None if rows_given is None else known.expanded(rows_given)
    return Audit(
        kind="weights" if known.gram is None else "sums",
        private=known.private,
        few={
            str(label): int(count)
            for label, count in zip(known.classes, known.counts, strict=True)
            if 0 < count < FEW
        },
        learnt=learnt,
        direction=direction,
        rank=rank,
        recovered=len(rows),
        classes=[str(known.classes[column]) for column in columns],
        features_recovered=len(rows) > 0 and backbone_features(rows, expansion) is not None,
        rows=rows.numpy(),
        cosines=[] if truth is None else _cosines(truth, rows),
        membership={}
        if truth is None or unseen is None
        else _membership(known, base, truth, labels, known.expanded(unseen), other_labels),
    )


@dataclass(frozen=True)
class _Known:
    """What an attacker reads in a file. Without sums, gram and moment are None."""

    classes: npt.NDArray[Any]
    counts: npt.NDArray[np.int64]
    scaling: Tensor | None
    expansion: Expansion
    precision: str
    weights: Tensor
    gram: Tensor | None
    moment: Tensor | None
    private: bool

    @property
    def n_samples(self) -> int:
        return int(self.counts.sum())

    @classmethod
    def of(cls, clf: ACILClassifier) -> _Known:
        counts = clf.class_count_
        with holding(clf) as state:
            model, head = state.model, state.model.head
            gram = moment = None
            if isinstance(head, Recursion):
                # R⁻¹ = gram + γI, and R⁻¹ W = moment
                inverse = torch.linalg.inv(head.R.double().cpu())
                moment = inverse @ head.coef.double().cpu()
                gram = (inverse + inverse.T) / 2
                gram.diagonal().sub_(head.gamma)
            elif not isinstance(head, Frozen):
                head.flush()
                gram = mirror_(head.sums.gram.double().cpu().clone())
                moment = head.sums.moment.double().cpu()
            return cls(
                state.classes,
                counts,
                state.scaling,
                model.expansion,
                model.precision.name,
                model.weights().coef.double().cpu(),
                gram,
                moment,
                state.release is not None and state.release["private"],
            )

    def expanded(self, features: Rows) -> Tensor:
        """Return features as the sums have them."""
        (rows,) = features.blocks(max(1, len(features)), torch.float64, torch.device("cpu"))
        if self.scaling is not None:
            shift, unit = self.scaling.cpu().double()
            rows = (rows - shift) / unit
        return self.expansion(rows)

    def columns(self, values: Tensor, classes: npt.NDArray[Any]) -> Tensor:
        """Return columns for all of these classes, of which ours are some."""
        wide = values.new_zeros(len(values), len(classes))
        wide[:, np.searchsorted(classes, self.classes)] = values
        return wide


def _difference(known: _Known, base: _Known | None) -> tuple[Tensor, Tensor]:
    """Return gram and moment of the samples between two states."""
    gram, moment = cast(Tensor, known.gram), cast(Tensor, known.moment)
    if base is None or base.gram is None or base.moment is None:
        return gram, moment
    return gram - base.gram, moment - base.columns(base.moment, known.classes)


def _recovered(known: _Known, base: _Known | None, learnt: int) -> tuple[Tensor, list[int], int | None]:
    nothing = known.weights.new_zeros(0, known.expansion.size)
    if base is not None and not np.isin(base.classes, known.classes).all():
        raise InputError(
            "Each of the two has classes that the other has not: they are not states of one model."
        )
    if known.gram is None or (base is not None and base.gram is None):
        if base is None or not learnt:
            return nothing, [], None
        before = base.columns(base.weights, known.classes)
        rank, row = recover_from_weights(before, known.weights, known.expansion)
        if row is None:
            return nothing, [], rank
        change = (known.weights - before).T @ row
        return row.unsqueeze(0), [int(change.argmax())], rank
    gram, moment = _difference(known, base)
    recovery = Recovered(None, nothing, [])
    # As many samples as dimensions span everything: no direction tells them apart.
    if 0 < learnt <= min(_MOST, len(gram) - 1):
        recovery = recover(gram, moment, learnt, known.expansion)
    # The sum over one new sample of a class is that sample, however many samples others have.
    gained = known.counts.copy()
    if base is not None:
        gained[np.searchsorted(known.classes, base.classes)] -= base.counts
    new = (gained == 1) & (not known.private)
    alone = [int(column) for column in np.flatnonzero(new) if column not in recovery.columns]
    return torch.cat([recovery.rows, moment[:, alone].T]), recovery.columns + alone, recovery.rank


def _membership(
    known: _Known, base: _Known | None, truth: Tensor, labels: Any, others: Tensor, other_labels: Any
) -> dict[str, Membership]:
    columns = [
        _columns(known, labels_given, len(rows))
        for labels_given, rows in ((labels, truth), (other_labels, others))
    ]
    if known.gram is None:
        sets = [(rows @ known.weights) for rows in (truth, others)]
        return {"score": _roc(*(_of_class(s, c) for s, c in zip(sets, columns, strict=True)))}
    gram, moment = _difference(known, base)
    values, vectors = torch.linalg.eigh(gram)
    floor = _RIDGE[known.precision] * float(known.gram.trace()) / len(gram)
    # xᵀ (gram + floor · I)⁻¹: at most 1 for the leverage of a member, more for others
    inverse = 1 / (values.clamp(min=0) + floor)
    leverages, scores = [], []
    for rows, column in zip((truth, others), columns, strict=True):
        seen = rows @ vectors
        leverages.append(-(seen.square() @ inverse))
        scores.append(_of_class((seen * inverse) @ (vectors.T @ moment), column))
    return {"leverage": _roc(*leverages), "score": _roc(*scores)}


def _columns(known: _Known, labels: Any, n: int) -> Tensor | None:
    """Return the column of each label; None if labels are not given or not all known."""
    if labels is None:
        return None
    columns = np.searchsorted(known.classes, np.asarray(labels)).clip(max=len(known.classes) - 1)
    if len(columns) != n or (known.classes[columns] != np.asarray(labels)).any():
        return None
    return torch.from_numpy(columns)


def _of_class(scores: Tensor, columns: Tensor | None) -> Tensor:
    """Return the score of the class of each row, or the largest where the class is not known."""
    if columns is None:
        return scores.max(dim=1).values
    return scores.gather(1, columns.unsqueeze(1))[:, 0]


def _roc(members: Tensor, others: Tensor) -> Membership:
    from sklearn.metrics import roc_auc_score, roc_curve

    truth = np.r_[np.ones(len(members)), np.zeros(len(others))]
    values = torch.cat([members, others]).numpy()
    false, true, _ = roc_curve(truth, values)
    return Membership(float(roc_auc_score(truth, values)), float(true[false <= _FALSE_POSITIVES].max()))


def _cosines(truth: Tensor, rows: Tensor) -> list[float]:
    """Return the cosine of each true row to the nearest one found."""
    if not len(rows):
        return [0.0] * len(truth)
    normalize = torch.nn.functional.normalize
    cosines: list[float] = (normalize(truth) @ normalize(rows).T).max(dim=1).values.tolist()
    return cosines
