"""Checks of the constructor arguments, made when learning starts, and of a γ that is given later."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from acil.analytic import (
    ACTIVATIONS,
    PRECISIONS,
    AnalyticModel,
    Expansion,
    GramHead,
    RecursiveHead,
)
from acil.errors import InputError, UnsupportedError
from acil.inputs import input_errors


def check_parameters(estimator: Any) -> None:
    """Raise an `InputError` that names the first argument that is not valid."""
    _one_of("activation", estimator.activation, ACTIVATIONS)
    _one_of("solver", estimator.solver, ("gram", "recursive"))
    _one_of("dtype", estimator.dtype, PRECISIONS)
    _one_of("sums", estimator.sums, ("auto", "extended"))
    size = estimator.expansion_size
    if size is not None and not (_is_number(size, Integral) and size >= 1):
        raise _invalid("expansion_size", "a positive int or None", size)
    gamma = estimator.gamma
    automatic = isinstance(gamma, str) and gamma == "auto"
    if not automatic and not (_is_number(gamma, Real) and 0 <= float(gamma) < np.inf):
        raise _invalid("gamma", "a finite number that is not negative, or 'auto'", gamma)
    for name in ("fit_intercept", "class_balance"):
        if not isinstance(getattr(estimator, name), bool | np.bool_):
            raise _invalid(name, "a bool", getattr(estimator, name))
    needs_sums = automatic or estimator.fit_intercept or estimator.dtype == "mixed"
    if estimator.solver == "recursive" and needs_sums:
        raise UnsupportedError(
            'gamma="auto", fit_intercept=True and dtype="mixed" need the sums, which '
            'solver="recursive" does not keep. Use solver="gram".'
        )
    if estimator.sums == "extended" and (estimator.solver, estimator.dtype) != ("gram", "float64"):
        raise UnsupportedError(
            'sums="extended" keeps the digits beyond float64, for which it needs solver="gram" and '
            f'dtype="float64". Got solver="{estimator.solver}" and dtype="{estimator.dtype}". Change '
            'these, or use sums="auto".'
        )


def check_gamma(gamma: Any) -> float:
    """Return a γ that is given after learning, or raise an `InputError`."""
    if isinstance(gamma, bool) or not isinstance(gamma, Real) or not 0 <= float(gamma) < np.inf:
        raise InputError(f"gamma must be a finite number that is not negative. Got {gamma!r}.")
    return float(gamma)


def check_candidates(gammas: Any) -> Tensor:
    """Return candidates for γ as float64 of shape (k,), or raise an `InputError`."""
    with input_errors():
        if isinstance(gammas, Tensor):
            gammas = gammas.detach().cpu().numpy()
        candidates = torch.from_numpy(np.array(gammas, dtype=np.float64).reshape(-1))
    valid = torch.isfinite(candidates) & (candidates >= 0)
    if not len(valid) or not bool(valid.all()):
        raise InputError("gammas must be finite numbers that are not negative, at least one.")
    return candidates


def resolve_seed(random_state: Any) -> int:
    """Return the seed of the expansion: an int as it is, anything else as one number drawn."""
    with input_errors():
        if _is_number(random_state, Integral):
            if not 0 <= int(random_state) < 2**63:
                raise _invalid("random_state", "an int from 0 to 2**63 - 1", random_state)
            return int(random_state)
        return int(check_random_state(random_state).randint(2**31 - 1))


def resolve_device(name: Any, dtype: str) -> torch.device:
    """Return the device, after making sure that it holds numbers of the given precision.

    ``"auto"`` is CUDA when there is one, else the CPU: other accelerators may lack float64 and must be
    asked for by name.
    """
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=PRECISIONS[dtype].sums, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"The 'device' parameter of ACILClassifier is {name!r}, which cannot be used here with "
            f'dtype="{dtype}": {reason} Use device="auto".'
        ) from error
    return device


def new_model(estimator: Any, n_features: int, seed: int) -> AnalyticModel:
    """Make the empty model that the (checked) arguments describe."""
    precision = PRECISIONS[estimator.dtype]
    device = resolve_device(estimator.device, estimator.dtype)
    expansion = Expansion.draw(n_features, estimator.expansion_size, estimator.activation, seed)
    head: GramHead | RecursiveHead
    if estimator.solver == "recursive":
        head = RecursiveHead(expansion.size, precision, device, float(estimator.gamma))
    else:
        gamma = None if estimator.gamma == "auto" else float(estimator.gamma)
        options = (gamma, bool(estimator.fit_intercept), estimator.sums == "extended")
        head = GramHead(expansion.size, precision, device, *options)
    return AnalyticModel(expansion, head, precision, device, bool(estimator.class_balance))


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool | np.bool_)


def _one_of(name: str, value: Any, options: Iterable[str]) -> None:
    if not isinstance(value, str) or value not in options:
        raise _invalid(name, "one of " + ", ".join(repr(option) for option in options), value)


def _invalid(name: str, expected: str, value: Any) -> InputError:
    return InputError(
        f"The '{name}' parameter of ACILClassifier must be {expected}. Got {value!r} instead."
    )
