"""Names of methods, and a user's own by ``package.module:Class``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from acil.errors import InputError
from acil.methods.base import Method

#: Registry name → module and class. A new method is one file and one line here.
_BUILT_IN = {
    "acil": "acil.methods.acil:ACIL",
    "ds-al": "acil.methods.ds_al:DSAL",
    "fecam": "acil.methods.fecam:FeCAM",
    "fetril": "acil.methods.fetril:FeTrIL",
    "lda": "acil.methods.lda:LDA",
    "ncm": "acil.methods.ncm:NCM",
    "slda": "acil.methods.slda:SLDA",
    "finetune": "acil.methods.finetune:Finetune",
    "joint": "acil.methods.joint:Joint",
    "lwf": "acil.methods.lwf:LwF",
    "lwf-exemplars": "acil.methods.lwf_exemplars:LwFExemplars",
    "icarl": "acil.methods.icarl:ICaRL",
    "icarl-bce": "acil.methods.icarl_bce:ICaRLBCE",
    "ewc": "acil.methods.ewc:EWC",
    "bic": "acil.methods.bic:BiC",
    "lucir": "acil.methods.lucir:LUCIR",
    "podnet": "acil.methods.podnet:PODNet",
    "eeil": "acil.methods.eeil:EEIL",
    "lfl": "acil.methods.lfl:LFL",
    "dgr": "acil.methods.dgr:DGR",
}
_REGISTERED: dict[str, type[Method]] = {}


def register(name: str) -> Callable[[type[Any]], type[Any]]:
    """Return a class decorator that makes a method known under a name."""

    def add(cls: type[Any]) -> type[Any]:
        _REGISTERED[name] = cls
        return cls

    return add


def available() -> tuple[str, ...]:
    """Return the names of all methods."""
    return tuple(sorted({*_BUILT_IN, *_REGISTERED}))


def resolve(name: str) -> type[Method]:
    """Return the class of a method.

    Parameters
    ----------
    name : str
        A registered name, ``HOST+WRAPPER…`` or ``package.module:Class``.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    if "+" in name:
        from acil.methods.wrappers import wrapped

        return wrapped(name)
    target = _BUILT_IN.get(name, name)
    module_name, separator, class_name = target.partition(":")
    if not separator:
        raise InputError(
            f"There is no method {name!r}. Known: {', '.join(available())}; your own is given as "
            "package.module:Class."
        )
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"Cannot import the method {name!r}: {error}.") from error
    missing = [part for part in _PARTS if not callable(getattr(found, part, None))]
    if missing or not isinstance(found, type):
        raise InputError(f"{name!r} is not a method: it lacks {', '.join(missing) or 'a class'}.")
    return found


_PARTS = ("learn", "predict", "memory", "state_dict", "load_state_dict")
