"""`partial_fit` by several processes, each with its own shard of the samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from acil.analytic import Sums
from acil.analytic.linalg import panels
from acil.classifier import ACILClassifier, FeaturesKept
from acil.distributed.group import Group, all_reduce_, share
from acil.errors import InputError, ProcessLostError, UnsupportedError
from acil.scores import Calibration
from acil.state import State
from acil.validation import (
    Labels,
    Rows,
    check_declared,
    check_labels,
    check_parameters,
    check_same_kind,
    columns_of,
    resolve_seed,
    union,
)

#: Parameters that may differ between processes: where each computes, and the seed, which is rank 0's.
_OWN = ("device", "random_state")
#: What processes must have the same to learn together.
_AGREED = {
    "parameters": "the parameters of the model",
    "backbone": "the backbone of the features",
    "model": "what the model has learnt so far",
    "features": "the number of features",
    "names": "the names of the features",
}


def partial_fit(
    classifier: ACILClassifier,
    X: Any,
    y: Any,
    classes: Any = None,
    sample_weight: Any = None,
    *,
    group: Group,
) -> ACILClassifier:
    """Learn more samples, of which each process of a group has a part; all end with the same model.

    Called by all processes of the group, with models that have learnt the same. Bad input of one is an
    `InputError` on all, with its rank, and a process that has ended or cannot be reached a
    `ProcessLostError`; the models have not changed then.

    Parameters
    ----------
    classifier : ACILClassifier
        With ``solver="gram"``. A new one takes its expansion from rank 0.
    X, y, classes, sample_weight
        As in `ACILClassifier.partial_fit`, of the shard of this process. Shards may differ in size, lack
        classes and be empty (None).
    group : Group

    Examples
    --------
    >>> X, y = np.eye(4), np.array(["cat", "dog", "cat", "dog"])
    >>> with Group.join(device="cpu") as group:
    ...     mine = slice(group.rank, None, group.size)
    ...     clf = partial_fit(ACILClassifier(expansion_size=8, gamma=1.0), X[mine], y[mine], group=group)
    >>> clf.predict(X[:2])
    array(['cat', 'dog'], dtype='<U3')
    """
    with FeaturesKept(classifier), group.together():
        shard = _checked_shard(classifier, X, y, classes, sample_weight)
        facts = group.exchange(_facts(classifier, shard))
        declared = _agreed_classes(facts)
        state = _state(classifier, facts, declared, group)
        sums = _all_sums(state, shard, declared, group)
        state.require_enough(declared, sums.counts.numpy(), classifier.min_class_samples)
    # Nothing that decides the scores depends on other processes from here on.
    with state.model.lock:
        state.model.ridge.flush()
        classifier._state = state.merged(sums, declared, Calibration.empty())
    # Of a process whose shard was empty
    classifier.n_features_in_ = _first(facts, "features")
    names = _first(facts, "names")
    if names is not None and not hasattr(classifier, "feature_names_in_"):
        classifier.feature_names_in_ = np.array(names, dtype=object)
    if classifier._state.calibration is not None:
        _calibrate(classifier, shard, group)
    return classifier


@dataclass
class _Shard:
    rows: Rows | None
    labels: Labels
    weights: Tensor | None
    #: Sorted; None where neither samples nor declared classes say of what type labels are.
    classes: Labels | None


def _checked_shard(
    classifier: ACILClassifier, X: Any, y: Any, classes: Any, sample_weight: Any
) -> _Shard:
    check_parameters(classifier)
    if classifier.solver != "gram":
        raise UnsupportedError(
            'Several processes learn together by adding their sums, which solver="recursive" does not '
            'keep. Use solver="gram".'
        )
    if classifier.standardize:
        raise UnsupportedError(
            "standardize=True takes the scale of the first samples of one process. Scale the features "
            "before several processes learn together."
        )
    fresh = not classifier.__sklearn_is_fitted__()
    if not fresh:
        classifier._require_state().model.ridge  # noqa: B018 (raises without sums)
    # A sparse matrix has a shape, but no length.
    if X is None or (X.shape[0] if getattr(X, "shape", None) else len(X)) == 0:
        if y is not None and len(y):
            raise InputError(f"X has no rows, but y has {len(y)} labels. Give one label for each row.")
        declared = None if classes is None else np.unique(check_labels(classes))
        return _Shard(None, np.empty(0), None, declared)
    rows, labels, weights = classifier._check_samples(X, y, sample_weight, reset=fresh)
    if not fresh:
        check_same_kind(labels, classifier._require_state().classes)
    return _Shard(rows, labels, weights, check_declared(classes, labels))


def _facts(classifier: ACILClassifier, shard: _Shard) -> dict[str, Any]:
    """Return what the other processes have to know, or must have the same."""
    state = classifier._require_state() if classifier.__sklearn_is_fitted__() else None
    names = getattr(classifier, "feature_names_in_", None)
    kept = shard.classes
    return {
        "parameters": {k: str(v) for k, v in classifier.get_params().items() if k not in _OWN},
        "backbone": json.dumps(getattr(classifier, "backbone_", None), sort_keys=True, default=str),
        "model": None if state is None else _digest(state),
        "seed": None if state is not None else resolve_seed(classifier.random_state),
        "features": None if shard.rows is None else shard.rows.n_features,
        "names": None if names is None or shard.rows is None else [str(name) for name in names],
        "classes": None if kept is None else [kept.dtype.str, kept.tolist()],
    }


def _agreed_classes(facts: Sequence[dict[str, Any]]) -> Labels:
    """Return the classes of all processes; raise, on all alike, if they cannot learn together."""
    for name, what in _AGREED.items():
        # A process without samples does not know the features.
        needed = name in ("model", "backbone")
        known = [(rank, own[name]) for rank, own in enumerate(facts) if needed or own[name] is not None]
        for rank, other in known:
            lowest, first = known[0]
            if other != first:
                raise InputError(
                    f"Ranks {lowest} and {rank} differ in {what}: {first} and {other}. Give all "
                    "processes the same model, and samples of the same kind."
                )
    if _first(facts, "features") is None:
        raise InputError("No process has samples. Give at least one sample to one of them.")
    found = (own["classes"] for own in facts if own["classes"] is not None)
    first, *others = [np.array(labels, dtype=dtype) for dtype, labels in found]
    for other in others:
        check_same_kind(other, first)
        first = union(first, other)
    return first


def _state(
    classifier: ACILClassifier, facts: Sequence[dict[str, Any]], declared: Labels, group: Group
) -> State:
    """Return the state to add to: the one there is, or an empty one with the expansion of rank 0."""
    if facts[0]["model"] is not None:
        state = classifier._require_state()
        check_same_kind(declared, state.classes)
        state.require_sums_of_samples()
        return state
    seed = facts[0]["seed"]
    state = State.new(classifier, declared[:0], _first(facts, "features"), seed)
    expansion = state.model.expansion
    if expansion.projection is not None:
        # Not drawn from the seed on each: generators may differ between versions of torch.
        shared = share({"projection": expansion.projection}, group) or {}
        expansion.projection = shared["projection"]
    return state


def _all_sums(state: State, shard: _Shard, declared: Labels, group: Group) -> Sums:
    """Return the sums over the shards of all processes."""
    model = state.model
    sums = Sums(model.expansion.size, len(declared), model.precision.sums, model.device)
    if shard.rows is not None:
        state.check_values(shard.rows)
        columns = columns_of(shard.labels, declared)
        sums.add(model.blocks(state.features(shard.rows), columns, shard.weights))
    # Those who failed up to here say so now; what follows needs everybody.
    group.exchange()
    gram = sums.gram
    for start, stop in panels(len(gram)):
        # One triangle of the matrix, packed
        left, square = gram[start:stop, :start], gram[start:stop, start:stop]
        below = torch.ones_like(square, dtype=torch.bool).tril()
        packed = all_reduce_(torch.cat([left.flatten(), square[below]]), group)
        left.copy_(packed[: left.numel()].view_as(left))
        square[below] = packed[left.numel() :]
    for part in (sums.moment, sums.weights, sums.counts):
        all_reduce_(part, group)
    return sums


def _calibrate(classifier: ACILClassifier, shard: _Shard, group: Group) -> None:
    """Count how the samples of all processes score when they are left out, if all can be reached."""
    state, seen = classifier._require_state(), Calibration.empty()
    before = cast(Calibration, state.calibration)
    try:
        with group.together():
            if shard.rows is not None:
                seen = state.measured(shard.rows, shard.labels, shard.weights)
            group.exchange()
            seen = Calibration(all_reduce_(seen.numbers, group))
        after = before.merged(seen)
    except ProcessLostError:
        after = before.marked()
    classifier._state = replace(state, calibration=after)


def _first(facts: Sequence[dict[str, Any]], name: str) -> Any:
    return next((own[name] for own in facts if own[name] is not None), None)


def _digest(state: State) -> str:
    """Return a short hash of a model, which tells two apart without reading the whole matrix."""
    with state.model.lock:
        state.model.ridge.flush()
        sums = state.model.ridge.sums
    # γ is None if it is still to be selected.
    digest = hashlib.sha256(f"{state.classes.tolist()} {state.model.ridge.gamma}".encode())
    digest.update(state.model.expansion.fingerprint().encode())
    for part in (sums.gram.diagonal(), sums.moment, sums.counts, sums.weights):
        digest.update(part.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
