"""Methods that change how another one learns: ``HOST+WRAPPER``, such as ``podnet+aanets+rmm``.

A wrapper is a class that overrides parts of `IncrementalNetwork` and leaves the rest to the class after
it; a wrapped method is a class with the wrappers, the last one first, and the host as its bases.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Any

from acil.errors import InputError
from acil.methods.aanets import AANets
from acil.methods.lucir import LUCIR
from acil.methods.mnemonics import Mnemonics
from acil.methods.podnet import PODNet
from acil.methods.rmm import RMM

HOSTS: dict[str, type[Any]] = {"lucir": LUCIR, "podnet": PODNet}
#: In the order in which they are named.
WRAPPERS: dict[str, type[Any]] = {"aanets": AANets, "mnemonics": Mnemonics, "rmm": RMM}


@cache
def wrapped(name: str) -> type[Any]:
    """Return the class of a wrapped method.

    Parameters
    ----------
    name : str
        A host and one or more wrappers, joined by "+".

    Examples
    --------
    >>> [base.__name__ for base in wrapped("podnet+aanets+rmm").__bases__]
    ['RMM', 'AANets', 'PODNet']
    """
    host, *around = name.split("+")
    if host not in HOSTS:
        raise InputError(f"In {name!r}, {host!r} cannot be wrapped. Hosts: {', '.join(HOSTS)}.")
    unknown = [part for part in around if part not in WRAPPERS]
    if unknown:
        raise InputError(f"In {name!r}, {unknown[0]!r} is no wrapper. Known: {', '.join(WRAPPERS)}.")
    ordered = "+".join([host, *(part for part in WRAPPERS if part in around)])
    if name != ordered:
        raise InputError(f"{name!r} names a wrapper twice or out of order. Write {ordered!r}.")
    bases = (*(WRAPPERS[part] for part in reversed(around)), HOSTS[host])
    names = {"name": name, "__doc__": f"{name}, see the files of its parts.", "__module__": __name__}
    return types.new_class(name, bases, exec_body=lambda namespace: namespace.update(names))
