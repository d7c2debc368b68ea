"""Names of methods: those that ship, wrapped ones, and a user's own by ``package.module:Class``.

A wrapper changes how another method learns: ``HOST+WRAPPER``, such as ``podnet+aanets+rmm``. It is a
class that overrides parts of `IncrementalNetwork` and leaves the rest to the class after it.
"""

from __future__ import annotations

import pkgutil
from functools import cache

from acil.bench.methods.base import Method
from acil.errors import InputError

#: Name → module and class. A new method is one file and one line here.
_BUILT_IN = {
    "acil": "acil.bench.methods.acil:ACIL",
    "ds-al": "acil.bench.methods.ds_al:DSAL",
    "fecam": "acil.bench.methods.fecam:FeCAM",
    "fetril": "acil.bench.methods.fetril:FeTrIL",
    "lda": "acil.bench.methods.lda:LDA",
    "ncm": "acil.bench.methods.class_means:NCM",
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


def resolve(name: str) -> type[Method]:
    """Return the class of a method: of `available`, ``HOST+WRAPPER…`` or ``package.module:Class``.

    A class of the user's own need not inherit from `Method`: it is given the defaults of what it lacks.

    Examples
    --------
    >>> [base.__name__ for base in resolve("podnet+aanets+rmm").__bases__]
    ['RMM', 'AANets', 'PODNet']
    """
    if "+" in name:
        return _wrapped(name)
    target = _BUILT_IN.get(name, name)
    if ":" not in target:
        raise InputError(
            f"There is no method {name!r}. Known: {', '.join(available())}; your own is given as "
            "package.module:Class."
        )
    try:
        found = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"Cannot import the method {name!r}: {error}.") from error
    missing = [
        part for part in sorted(Method.__abstractmethods__) if not callable(getattr(found, part, None))
    ]
    if missing or not isinstance(found, type):
        raise InputError(f"{name!r} is not a method: it lacks {', '.join(missing) or 'a class'}.")
    if issubclass(found, Method):
        return found
    return type(found.__name__, (found, Method), {})


@cache
def _wrapped(name: str) -> type[Method]:
    """Return a host method whose wrappers, the last one first, override parts of it."""
    host, *wrappers = name.split("+")
    if host not in HOSTS or wrappers != [part for part in WRAPPERS if part in wrappers]:
        raise InputError(
            f"There is no method {name!r}. A wrapped one is a host ({', '.join(HOSTS)}) and, after '+', "
            f"wrappers ({', '.join(WRAPPERS)}), each once and in this order."
        )
    parts = [*(WRAPPERS[part] for part in reversed(wrappers)), _BUILT_IN[host]]
    names = {"name": name, "__doc__": f"{name}, see the files of its parts.", "__module__": __name__}
    return type(name, tuple(map(pkgutil.resolve_name, parts)), names)
