"""docs/architecture.md shows the houses that there are, and names that exist; all keep to its rules."""

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from support.forks import called

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "acil"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

#: What a page about houses leaves out; the package itself hands out names of all houses, lazily.
ENTRY = {"", "__main__", "moved"}
#: They run code that a file contains, or write such files.
UNSAFE = {"pickle", "cloudpickle", "dill", "shelve", "joblib", "torch.load", "torch.save"}
#: What named tuples and torch call so, and document or offer no other way to.
FOREIGN = {
    "_replace",
    "_asdict",
    "_fields",
    "_conv_forward",
    "_compiled_call_impl",
    "_scale",
    "_growth_tracker",
}


@cache
def package_files() -> list[tuple[str, str, ast.AST]]:
    """Return (dotted module name, house in the picture, syntax tree) of every file."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append((module, drawn_house_of(module), ast.parse(path.read_text(encoding="utf-8"))))
    return found


def drawn_house_of(module: str) -> str:
    """Return the house of a dotted name; the package itself has none ("")."""
    return module.partition("acil")[2].lstrip(".").partition(".")[0]


def drawn_houses() -> list[str]:
    """Return the houses of the picture, from the top down."""
    (picture,) = re.findall(r"^## Houses$.*?^```\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return [re.split(r"/|\.py", line)[0] for line in picture.splitlines()]


def names_used(tree: ast.AST) -> Iterator[str]:
    """Yield dotted names of what is imported anywhere in a file, and of attributes of modules."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (a.value for a in node.args[:1] if isinstance(a, ast.Constant))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{aliases.get(node.value.id, node.value.id)}.{node.attr}"


def test_the_picture_has_every_room_once():
    houses = drawn_houses()
    assert len(houses) == len(set(houses))
    assert set(houses) == {house for _, house, _ in package_files()} - ENTRY


def lint() -> int:
    """Return the exit code of import-linter, in a process of its own: it turns off the log of others."""
    os.chdir(ROOT)
    return lint_imports(no_cache=True)


def test_imports_go_down_in_the_picture_as_the_contracts_say():
    assert called(lint) == 0, "run make lint"
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    place = {house: n for n, row in enumerate(layers["layers"]) for house in row.split(" | ")}
    drawn = [place[house] for house in drawn_houses()]
    assert drawn == sorted(drawn)
    assert set(drawn_houses()) | ENTRY == set(place) | {"", "__main__", "moved"}


@pytest.mark.parametrize(("tools", "house"), [({"typer", "rich"}, "cli"), (UNSAFE, None)])
def test_tools_are_used_only_where_they_may_be(tools, house):
    found = [
        (module, name)
        for module, own, tree in package_files()
        for name in names_used(tree)
        if own != house and {name, name.partition(".")[0]} & tools
    ]
    assert not found


def test_only_the_command_prints():
    found = [
        module
        for module, house, tree in package_files()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print" and house != "cli"
    ]
    assert not found


def test_one_place_writes_files_of_tensors():
    found = [module for module, _, tree in package_files() if "save_file" in ast.unparse(tree)]
    assert found == ["acil.core.files.writing"]


def test_one_place_reads_files_of_tensors():
    readers = {"safetensors.safe_open", "safetensors.torch.load_file", "safetensors.numpy.load_file"}
    found = [module for module, _, tree in package_files() if readers & {*names_used(tree)}]
    assert not found, "acil.core.files.reading reads them all"


def defined_names(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    """Yield functions, classes, methods (as Class.method) and constants of a file."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from defined_names(node, f"{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (child.id for child in ast.walk(target) if isinstance(child, ast.Name))


def private_members(tree: ast.AST) -> set[str]:
    """Return names with one underscore that classes of a file define: methods and attributes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
            found |= set(defined_names(node))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return {name for name in found if is_private(name)}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def reads_of_private_names(tree: ast.AST) -> Iterator[str]:
    """Yield names with an underscore that a file takes from what another file defines.

    Its own are those of its classes, in whatever variable the object is, and what it inherits (``self``,
    ``cls``, ``super()``). A module of another package, such as torch, is not ours.
    """
    allowed, itself = private_members(tree) | FOREIGN, {"self", "cls", "super()"}
    packages: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {alias.asname or alias.name.partition(".")[0] for alias in node.names} - {"acil"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "acil":
            yield from (f"{node.module}.{a.name}" for a in node.names if is_private(a.name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in allowed:
            holder = ast.unparse(node.value)
            if holder not in itself and holder.partition(".")[0] not in packages:
                yield ast.unparse(node)


def test_no_file_reads_an_underscore_name_of_another():
    found = {module: [*reads_of_private_names(tree)] for module, _, tree in package_files()}
    assert not {module: names for module, names in found.items() if names}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("clf._state.model", ["clf._state"]),
        ("from acil.core.model import _BIAS", ["acil.core.model._BIAS"]),
        ("import acil\nacil.core._x", ["acil.core._x"]),
        ("class A:\n    def f(self, other):\n        self._x = other._x + super()._y + self._z", []),
        ("class A:\n    _x: int\ndef f(a):\n    return a._x", []),
        ("def f(a):\n    a._x = 1", ["a._x"]),
        ("import torch\ntorch._foreach_add_(a)\nself._y", []),
    ],
)
def test_reads_of_underscore_names_are_noticed(text, names):
    assert [*reads_of_private_names(ast.parse(text))] == names


def test_the_files_of_the_core_are_all_explained():
    named = set(re.findall(r"^\| `(\w+\.py)` \|", PAGE, flags=re.MULTILINE))
    assert named == {path.name for path in (PACKAGE / "core").glob("*.py")} - {"__init__.py"}


@pytest.mark.parametrize(
    ("file", "names"), re.findall(r"^\| [^|]+ \| `([\w/]+\.py)` \| (.+?) \|$", PAGE, flags=re.MULTILINE)
)
def test_names_to_search_for_are_in_their_file(file, names):
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    missing = set(re.findall(r"`([\w.]+)`", names)) - set(defined_names(tree))
    assert not missing, f"docs/architecture.md looks for {sorted(missing)} in {file}"


def test_names_of_the_walks_exist_somewhere():
    walks = PAGE[PAGE.index("## A sample") : PAGE.index("## Where is")]
    named = {name for name in re.findall(r"`([\w.]+)`", walks) if re.search(r"_|[A-Z]|\w\.\w", name)}
    everywhere = {name for _, _, tree in package_files() for name in defined_names(tree)}
    files = {path.name for path in PACKAGE.rglob("*.py")} | {"records.jsonl"}
    assert len(named) > 25
    assert named <= everywhere | files, sorted(named - everywhere - files)
