"""Optional packages: which extra brings which, and the command that installs them."""

from __future__ import annotations

import re
from importlib import metadata

#: Extras for those who change this package.
FOR_DEVELOPERS = ("dev", "docs")


def extras() -> dict[str, list[str]]:
    """Return the optional extras of this package, and the packages that each brings."""
    by_extra: dict[str, list[str]] = {}
    try:
        lines = metadata.requires("acil") or []
    except metadata.PackageNotFoundError:  # run from its source folder
        lines = []
    for line in lines:
        package = re.match(r"([\w.-]+).*; extra == [\"'](\w+)[\"']", line)
        # Extras that only name others have no packages of their own.
        if package is not None and package[1] != "acil" and package[2] not in FOR_DEVELOPERS:
            by_extra.setdefault(package[2], []).append(package[1])
    return by_extra


def install(*names: str) -> str:
    """Return the command that installs the packages of these extras.

    It names the packages themselves: acil is on no index, and the clone is not always at hand.
    """
    packages = [package for name in names for package in extras().get(name, ())]
    return f"pip install {' '.join(packages)}" if packages else f'pip install -e ".[{",".join(names)}]"'
