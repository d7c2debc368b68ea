"""Rooms of the package import only from rooms below them, and each keeps to its own tools."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "acil"

#: From the bottom up: a room may import itself and what stands before it.
ROOMS = [
    "errors",
    "analytic",
    "scores",
    "calibration",
    "consistency",
    "validation",
    "state",
    "classifier",
    "river",
    "modelfile",
    "distributed",
    "privacy",
    "vision",
    "export",
    "images",
    "training",
    "methods",
    "benchmark",
    "app",
    "cli",
    "__main__",
]
#: Rooms that know less than their height would allow.
ONLY = {"errors": set(), "analytic": {"errors"}}
#: What any room may take from the package itself, which otherwise is the face for users.
SHARED_NAMES = {"__version__"}
ONLY_IN_CLI = {"typer", "rich"}
#: They run code that a file contains, or write such files.
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "shelve", "joblib"}
FORBIDDEN_NAMES = {"torch.load", "torch.save"}


def room_of(module: str) -> str:
    """Return the room of a dotted module name; the package itself has none ("")."""
    return module.partition("acil")[2].lstrip(".").partition(".")[0]


def imported_names(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of everything imported anywhere in a file, down to single names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parents = module.split(".")
                kept = len(parents) - node.level + is_package
                source = ".".join([*parents[:kept], *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def used_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of attributes, with aliases of imported modules resolved."""
    aliases = {
        alias.asname: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.asname
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, f"{aliases.get(node.value.id, node.value.id)}.{node.attr}"


def import_violation(room: str, name: str) -> str | None:
    """Say what is wrong with a room importing this dotted name, if anything."""
    top = name.partition(".")[0]
    if top in FORBIDDEN_MODULES:
        return f"imports {top}, which runs code that a file contains; use safetensors or JSON"
    if name in FORBIDDEN_NAMES:
        return f"imports {name}; use safetensors"
    if top in ONLY_IN_CLI and room != "cli":
        return f"imports {top}, which only cli/ may use"
    if top != "acil" or name == "acil":
        return None  # what is used of a plain `import acil` is judged by its attributes
    target = room_of(name)
    if target in SHARED_NAMES or target == room:
        return None
    if target not in ROOMS:
        return f"imports {target!r} from the package itself; import it from the module it lives in"
    if room in ONLY and target not in ONLY[room]:
        return f"imports {target}, but {room} may import only {sorted(ONLY[room]) or 'nothing'}"
    if ROOMS.index(target) > ROOMS.index(room):
        return f"imports {target}, which stands above {room}"
    return None


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Return everything in a source file that its room does not allow.

    Parameters
    ----------
    source : str
    module : str
        Dotted name, such as ``"acil.analytic.linalg"``.
    is_package : bool
        Whether the file is an ``__init__.py``.
    """
    tree, room = ast.parse(source), room_of(module)
    found = []
    if room:  # the package's own __init__ hands out names of all rooms, lazily
        names = [*imported_names(tree, module, is_package)]
        names += [(line, name) for line, name in used_names(tree) if name.startswith("acil.")]
        found += [(line, import_violation(room, name)) for line, name in names]
    found += [
        (line, f"uses {name}; use safetensors")
        for line, name in used_names(tree)
        if name in FORBIDDEN_NAMES
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            found.append(
                (node.lineno, None if room == "cli" else "prints, which only cli/ may; log instead")
            )
    return sorted({f"{module}, line {line}: {what}" for line, what in found if what})


def unknown_rooms(names: set[str]) -> list[str]:
    """Return a message for each top-level module that has no place in the order."""
    return [
        f"src/acil/{name} has no place yet: add it to ROOMS in tests/test_rooms.py and to docs"
        for name in sorted(names - set(ROOMS))
    ]


def package_files() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_every_room_imports_only_from_below():
    found = [
        violation
        for module, path in package_files()
        for violation in violations(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    ]
    assert not found, "\n" + "\n".join(found)


def test_every_room_has_a_place():
    rooms = {room_of(module) for module, _ in package_files()} - {""}
    assert {"errors", "analytic", "classifier", "cli"} <= rooms
    assert not unknown_rooms(rooms), "\n" + "\n".join(unknown_rooms(rooms))


def test_one_place_writes_files_of_tensors():
    found = [module for module, path in package_files() if "save_file" in path.read_text("utf-8")]
    assert found == ["acil.modelfile.writing"]


def test_new_room_without_a_place_is_found():
    (message,) = unknown_rooms({"errors", "attic"})
    assert "src/acil/attic" in message
    assert "add it to ROOMS" in message


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("acil.analytic.linalg", "from acil.classifier import State"),
        ("acil.analytic.linalg", "import acil.classifier"),
        ("acil.analytic.linalg", "from ..classifier import State"),
        ("acil.analytic.linalg", "from .. import classifier"),
        ("acil.analytic.linalg", "from acil import classifier"),
        ("acil.analytic.linalg", "import acil\nacil.classifier"),
        ("acil.analytic.linalg", "import acil as package\npackage.classifier"),
        ("acil.analytic.linalg", "import importlib\nimportlib.import_module('acil.classifier')"),
        ("acil.analytic.linalg", "def late():\n    from acil.classifier import State"),
        ("acil.analytic.linalg", "if TYPE_CHECKING:\n    from acil.classifier import State"),
        ("acil.errors", "from acil.analytic import linalg"),
        ("acil.modelfile", "from acil.cli import main"),
        ("acil.modelfile", "from acil import ACILClassifier"),
        ("acil.modelfile", "import acil\nacil.ACILClassifier"),
        ("acil.modelfile", "import typer"),
        ("acil.modelfile", "from rich.table import Table"),
        ("acil.modelfile", "print('done')"),
        ("acil.modelfile", "import pickle"),
        ("acil.modelfile", "def late():\n    from joblib import dump"),
        ("acil.modelfile", "import torch\ntorch.load('m.pt')"),
        ("acil.modelfile", "import torch as t\nt.save({}, 'm.pt')"),
        ("acil.modelfile", "from torch import load"),
        ("acil.cli.models", "import pickle"),
        ("acil", "import torch\ntorch.load('m.pt')"),
        ("acil", "print('hello')"),
    ],
)
def test_checker_finds_a_violation(module, source):
    found = violations(source, module)
    assert len(found) == 1
    assert found[0].startswith(f"{module}, line {source.count(chr(10)) + 1}: ")


def test_checker_resolves_relative_imports_of_packages():
    assert violations("from . import linalg", "acil.analytic", is_package=True) == []
    assert violations("from .linalg import add_gram_", "acil.analytic", is_package=True) == []
    assert len(violations("from ..classifier import State", "acil.analytic", is_package=True)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "acil.analytic.linalg",
            "import torch\nfrom acil.analytic.sums import x\nfrom acil.errors import y",
        ),
        ("acil.analytic.linalg", "from .cholesky import Factor\nfrom ..errors import InputError"),
        (
            "acil.classifier",
            "from acil.analytic import AnalyticModel\nfrom acil.state import State",
        ),
        ("acil.modelfile", "import acil\nfrom acil import __version__\nacil.__version__"),
        (
            "acil.cli.doctor",
            "import typer\nfrom rich import box\nprint('hello')\nfrom acil.modelfile import load",
        ),
        ("acil", "from acil.classifier import ACILClassifier"),
        ("acil.modelfile", "state.load('x')\nself.print('y')\nfrom safetensors.torch import save_file"),
    ],
)
def test_checker_accepts_what_is_allowed(module, source):
    assert violations(source, module) == []
