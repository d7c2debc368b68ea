"""The class-incremental benchmark: `run` does what ``acil bench run`` does, from Python."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["run"]


def run(
    out: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    config: str | os.PathLike[str] | None = None,
    set: Mapping[str, Any] | None = None,
    progress: Callable[[Any], None] | None = None,
    **flags: Any,
) -> list[dict[str, Any]]:
    """Run methods under the class-incremental protocol, and return the records.

    Parameters
    ----------
    out : path-like, optional
        The run directory, as for the command; by default nothing is kept.
    resume : bool
        Go on with a run that was interrupted.
    force : bool
        Replace a run that is there.
    config : path-like, optional
        TOML file with settings; flags go before it.
    set : Mapping, optional
        What the command takes as ``--set``: ``{"recipe.training.epochs": 3}``.
    progress : callable, optional
        Told about each phase and each epoch of training.
    **flags
        The flags of ``acil bench run``: ``dataset``, ``method``, ``protocol``, ``phases``, ``seeds``,
        ``recipe``, ``order``, ``suite``, ``backbone``, ``base``, ``classes``, ``expansion_size``,
        ``gamma``, ``solver``, ``dtype``, ``device``, ``root``, ``skip_bad``, ``jobs``, ``memory``.
        Lists may be Python lists.

    Returns
    -------
    list of dict
        Of kind ``environment``, ``phase`` (one for each phase), ``summary`` (one for each method, seed
        and K) and ``failure``; their fields are in docs/benchmark.md.

    Raises
    ------
    acil.errors.ACILError
        If jobs failed; what the others found is in the run directory.

    Examples
    --------
    >>> import acil.bench
    >>> records = acil.bench.run(dataset="digits", method="ncm", phases=5, seeds=0,
    ...                              set={"recipe.training.epochs": 1})
    >>> [record["phase"] for record in records if record["kind"] == "phase"]
    [0, 1, 2, 3, 4, 5]
    """
    # torch takes seconds to import: not before it is needed.
    from acil.bench.config import make_config, read_config
    from acil.bench.records import FILE_NAME, Records
    from acil.bench.runner import run as run_config

    values = {} if config is None else read_config(Path(config))
    settings = make_config({**values, **flags, **(set or {})})
    with tempfile.TemporaryDirectory(prefix="acil-bench-") as temporary:
        folder = Path(temporary) / "run" if out is None else Path(out)
        run_config(settings, folder, resume=resume, force=force, progress=progress)
        return Records(folder / FILE_NAME).read()
