"""Names of methods: those that ship, wrapped ones, and a user's own by ``package.module:Class``.

A wrapper changes how another method learns: ``HOST+WRAPPER``, such as ``podnet+aanets+rmm``. The host
keeps it and asks it, see `acil.bench.methods.incremental.Wrapper`.
"""

from __future__ import annotations

import pkgutil
from typing import Any

from acil.bench.methods.base import Method, Planning
from acil.errors import InputError

#: Name → module and class. A new method is one file and one line here.
_BUILT_IN = {
    "acil": "acil.bench.methods.acil:ACIL",
    "aef-ocl": "acil.bench.methods.aef_ocl:AEFOCL",
    "air": "acil.bench.methods.air:AIR",
    "anacp": "acil.bench.methods.anacp:AnaCP",
    "ds-al": "acil.bench.methods.ds_al:DSAL",
    "fecam": "acil.bench.methods.fecam:FeCAM",
    "fetril": "acil.bench.methods.fetril:FeTrIL",
    "g-air": "acil.bench.methods.air:GAIR",
    "gkeal": "acil.bench.methods.gkeal:GKEAL",
    "klda": "acil.bench.methods.klda:KLDA",
    "lda": "acil.bench.methods.lda:LDA",
    "ncm": "acil.bench.methods.class_means:NCM",
    "ranpac": "acil.bench.methods.ranpac:RanPAC",
    "slda": "acil.bench.methods.lda:SLDA",
    "finetune": "acil.bench.methods.bounds:Finetune",
    "joint": "acil.bench.methods.bounds:Joint",
    "lwf": "acil.bench.methods.lwf:LwF",
    "lwf-exemplars": "acil.bench.methods.lwf:LwFExemplars",
    "icarl": "acil.bench.methods.icarl:ICaRL",
    "icarl-bce": "acil.bench.methods.icarl:ICaRLBCE",
    "ewc": "acil.bench.methods.ewc:EWC",
    "bic": "acil.bench.methods.bic:BiC",
    "lucir": "acil.bench.methods.lucir:LUCIR",
    "podnet": "acil.bench.methods.podnet:PODNet",
    "eeil": "acil.bench.methods.eeil:EEIL",
    "lfl": "acil.bench.methods.lfl:LFL",
    "dgr": "acil.bench.methods.dgr:DGR",
}
#: What can be wrapped by others, and by what, in the order in which wrappers are named.
HOSTS = ("lucir", "podnet")
WRAPPERS = {
    "aanets": "acil.bench.methods.aanets:AANets",
    "mnemonics": "acil.bench.methods.mnemonics:Mnemonics",
    "rmm": "acil.bench.methods.rmm:RMM",
}


def available() -> tuple[str, ...]:
    """Return the names of all methods."""
    return tuple(sorted(_BUILT_IN))


def resolve(name: str) -> Planning:
    """Return what a run asks of a method: of `available`, ``HOST+WRAPPER…`` or ``package.module:Class``.

    Called with a context, it makes the method. A class of the user's own need not inherit from `Method`.

    Examples
    --------
    >>> [wrapper.__name__ for wrapper in resolve("podnet+aanets+rmm").wrappers]
    ['AANets', 'RMM']
    """
    host, *wrappers = name.split("+")
    if wrappers and (host not in HOSTS or wrappers != [part for part in WRAPPERS if part in wrappers]):
        raise InputError(
            f"There is no method {name!r}. A wrapped one is a host ({', '.join(HOSTS)}) and, after '+', "
            f"wrappers ({', '.join(WRAPPERS)}), each once and in this order."
        )
    target = _BUILT_IN.get(host, host)
    if ":" not in target:
        raise InputError(
            f"There is no method {name!r}. Known: {', '.join(available())}; your own is given as "
            "package.module:Class."
        )
    try:
        method = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"Cannot import the method {name!r}: {error}.") from error
    missing = [
        part for part in sorted(Method.__abstractmethods__) if not callable(getattr(method, part, None))
    ]
    if missing or not callable(method):
        raise InputError(f"{name!r} is not a method: it lacks {', '.join(missing) or 'a class'}.")
    planning: Any = getattr(method, "planning", Planning)
    parts = [pkgutil.resolve_name(WRAPPERS[wrapper]) for wrapper in wrappers]
    made: Planning = planning(method, parts) if parts else planning(method)
    return made
