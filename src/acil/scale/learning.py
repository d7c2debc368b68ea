"""`partial_fit` by several processes, each with its own shard of the samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import torch

from acil.core.classifier import (
    ACILClassifier,
    adopt,
    check_samples,
    draft_of,
    holding,
    learnt_of,
    ledger_before,
)
from acil.core.inputs import (
    Labels,
    check_declared,
    check_labels,
    check_same_kind,
    given_scaling,
    resolve_seed,
    union,
)
from acil.core.linalg import lower_panels, plain_torch
from acil.core.model import Learnt, Samples
from acil.core.parameters import PARAMETERS, check_parameters
from acil.core.scores import Calibration
from acil.core.sums import Sums
from acil.errors import InputError, ProcessLostError, UnsupportedError
from acil.scale.group import Group, all_reduce_, share

#: What processes must have the same to learn together, as far as they know it.
_AGREED = {
    "parameters": "the parameters of the model",
    "backbone": "the backbone of the features",
    "model": "what the model has learnt so far",
    "features": "the number of features",
    "names": "the names of the features",
}


@plain_torch()
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
    with group.together():
        state = learnt_of(classifier) if classifier.__sklearn_is_fitted__() else None
        # What scikit-learn notes of the features of X is not this model's before the state is.
        new = draft_of(classifier) if state is None else classifier
        samples, named = _checked(new, X, y, classes, sample_weight, state)
        facts = group.exchange(_facts(new, samples, named, state))
        agreed = _agreed(facts)
        declared: Labels = agreed["classes"]
        if state is None:
            settings = check_parameters(classifier)
            state = Learnt.new(
                *(settings, declared[:0], agreed["features"], facts[0]["seed"]),
                *(given_scaling(settings),),
                release=ledger_before(classifier),
            )
            expansion = state.model.expansion
            # Not drawn from the seed on each: generators may differ between versions of torch.
            drawn = {"projection": expansion.projection, "bias": expansion.bias}
            shared = share(drawn, group) or {}
            expansion.projection, expansion.bias = shared["projection"], shared["bias"]
            # Of a process whose shard was empty
            new.n_features_in_ = agreed["features"]
            if agreed["names"] is not None:
                new.feature_names_in_ = np.array(agreed["names"], dtype=object)
        sums = _all_sums(state, samples, declared, group)
        state.require_enough(declared, sums.counts.numpy(), classifier.min_class_samples)
    # Nothing that decides the scores depends on other processes from here on.
    # Approximate until all samples are counted
    learnt = state.merged(sums, declared, None)
    adopt(classifier, learnt, new)
    if state.calibration is not None:
        # Count how the samples of all processes score when they are left out, if all can be reached.
        with suppress(ProcessLostError), group.together():
            measured = Calibration.empty(learnt.hotter)
            if samples is not None:
                measured = learnt.measured(learnt.blocks(samples, learnt.classes))
            seen = reduce(Calibration.merged, group.exchange(measured))
            counts = state.model.head.counts, learnt.model.head.counts
            calibration = state.calibration.among(*counts).merged(seen)
            adopt(classifier, replace(learnt, calibration=calibration))
    return classifier


def _checked(
    classifier: ACILClassifier, X: Any, y: Any, classes: Any, sample_weight: Any, known: Learnt | None
) -> tuple[Samples | None, Labels | None]:
    """Return the samples of this process and the classes it names, sorted; None where it has none."""
    check_parameters(classifier)
    if classifier.solver != "gram":
        raise UnsupportedError(
            'Several processes learn together by adding their sums, which solver="recursive" does not '
            'keep. Use solver="gram".'
        )
    if classifier.standardize is True:
        raise UnsupportedError(
            "standardize=True takes the scale of the first samples of one process. Give means and "
            "deviations, or scale the features before several processes learn together."
        )
    # A sparse matrix has a shape, but no length.
    if X is None or (X.shape[0] if getattr(X, "shape", None) else len(X)) == 0:
        if y is not None and len(y):
            raise InputError(f"X has no rows, but y has {len(y)} labels. Give one label for each row.")
        return None, None if classes is None else np.unique(check_labels(classes))
    samples = check_samples(classifier, X, y, sample_weight, first=known is None)
    if known is not None:
        check_same_kind(samples.labels, known.classes)
    return samples, check_declared(classes, samples.labels)


def _facts(
    classifier: ACILClassifier, samples: Samples | None, named: Labels | None, known: Learnt | None
) -> dict[str, Any]:
    """Return what the other processes have to know, or must have the same."""
    names = getattr(classifier, "feature_names_in_", None)
    return {
        "parameters": {
            name: str(getattr(classifier, name)) for name, p in PARAMETERS.items() if p.common
        },
        "backbone": json.dumps(getattr(classifier, "backbone_", None), sort_keys=True, default=str),
        "model": "None" if known is None else _digest(classifier, known),
        "seed": resolve_seed(classifier.random_state) if known is None else None,
        "features": None if samples is None else samples.rows.n_features,
        "names": None if names is None or samples is None else [str(name) for name in names],
        "classes": named,
    }


def _agreed(facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what all processes have the same; raise, on all alike, if they cannot learn together."""
    agreed: dict[str, Any] = {}
    for name, what in _AGREED.items():
        # A process without samples does not know the features.
        known = [(rank, fact[name]) for rank, fact in enumerate(facts) if fact[name] is not None]
        lowest, agreed[name] = known[0] if known else (0, None)
        for rank, other in known:
            if other != agreed[name]:
                raise InputError(
                    f"Ranks {lowest} and {rank} differ in {what}: {agreed[name]} and {other}. Give all "
                    "processes the same model, and samples of the same kind."
                )
    if agreed["features"] is None:
        raise InputError("No process has samples. Give at least one sample to one of them.")
    classes, *others = [fact["classes"] for fact in facts if fact["classes"] is not None]
    for other in others:
        check_same_kind(other, classes)
        classes = union(classes, other)
    return {**agreed, "classes": classes}


def _all_sums(state: Learnt, samples: Samples | None, declared: Labels, group: Group) -> Sums:
    """Return the sums over the samples of all processes."""
    model = state.model
    sums = Sums(model.expansion.size, len(declared), model.precision.sums, model.device)
    if samples is not None:
        state.check(samples)
        sums.add(state.blocks(samples, declared))
    # Those who failed up to here say so now; what follows needs everybody.
    group.exchange()
    for _, panel, below in lower_panels(sums.gram):
        panel[below] = all_reduce_(panel[below], group)
    whole = torch.tensor([sums.total_weight, sums.n_samples], dtype=torch.float64)
    for part in (sums.moment, sums.total, sums.target_total, sums.counts, whole):
        all_reduce_(part, group)
    sums.total_weight, sums.n_samples = float(whole[0]), int(sums.counts.sum())
    return sums


def _digest(classifier: ACILClassifier, state: Learnt) -> str:
    """Return a short hash of a model, which tells two apart without reading the whole matrix."""
    with holding(classifier):
        state.model.ridge.flush()
        sums = state.model.ridge.sums
    # γ is None if it is still to be selected.
    digest = hashlib.sha256(f"{state.classes.tolist()} {state.model.ridge.gamma}".encode())
    digest.update(state.model.expansion.fingerprint().encode())
    for part in (sums.gram.diagonal(), sums.moment, sums.counts, sums.target_total):
        digest.update(part.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
