"""docs/architecture.md shows the rooms that there are, and names that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from test_rooms import PACKAGE, imported_names, package_files, room_of

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")

#: Files that the picture shows on the line of the room they serve.
SERVE = dict.fromkeys(("validation", "scores", "calibration", "consistency", "state"), "classifier")
#: What a page about rooms leaves out.
ENTRY = {"", "__main__"}


def drawn_rooms(page: str) -> list[str]:
    """Return the rooms of the picture, from the top down."""
    (picture,) = re.findall(r"^## Rooms$.*?^```\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    return [re.split(r"/|\.py", line)[0] for line in picture.splitlines()]


def drawn_room_of(module: str) -> str:
    room = room_of(module)
    return SERVE.get(room, room)


def upward(imports: set[tuple[str, str]], rooms: list[str]) -> set[tuple[str, str]]:
    """Return those of the imports (room, imported room) that go up in the picture."""
    return {(room, other) for room, other in imports if rooms.index(other) < rooms.index(room)}


def imports_between_rooms() -> set[tuple[str, str]]:
    found = set()
    for module, path in package_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for _, name in imported_names(tree, module, path.name == "__init__.py"):
            if name.startswith("acil.") and name != "acil.__version__":
                found.add((drawn_room_of(module), drawn_room_of(name)))
    return {(room, other) for room, other in found if room not in ENTRY and room != other}


def defined_names(room: str) -> set[str]:
    """Return functions, classes, methods (as Class.method) and constants of a room."""
    files = [path for module, path in package_files() if drawn_room_of(module) == room]
    return {name for path in files for name in _names(ast.parse(path.read_text(encoding="utf-8")))}


def _names(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _names(node, f"{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (child.id for child in ast.walk(target) if isinstance(child, ast.Name))


def test_the_picture_has_every_room_once():
    rooms = drawn_rooms(PAGE)
    assert len(rooms) == len(set(rooms))
    assert set(rooms) == {drawn_room_of(module) for module, _ in package_files()} - ENTRY


def test_no_import_goes_up_in_the_picture():
    imports = imports_between_rooms()
    assert len(imports) > 20
    assert not upward(imports, drawn_rooms(PAGE))


def test_an_import_that_goes_up_is_found():
    assert upward({("analytic", "cli"), ("cli", "analytic")}, ["cli", "analytic"]) == {
        ("analytic", "cli")
    }


def test_the_files_of_analytic_are_all_explained():
    named = set(re.findall(r"^\| `(\w+\.py)` \|", PAGE, flags=re.MULTILINE))
    assert named == {path.name for path in (PACKAGE / "analytic").glob("*.py")} - {"__init__.py"}


@pytest.mark.parametrize(
    ("room", "names"),
    re.findall(r"^\| [^|]+ \| `(\w+)(?:/|\.py)` \| (.+?) \|$", PAGE, flags=re.MULTILINE),
)
def test_names_to_search_for_are_in_their_room(room, names):
    missing = set(re.findall(r"`([\w.]+)`", names)) - defined_names(SERVE.get(room, room))
    assert not missing, f"docs/architecture.md looks for {sorted(missing)} in {room}"


def test_names_of_the_walks_exist_somewhere():
    walks = PAGE[PAGE.index("## A sample") : PAGE.index("## Where is")]
    named = {name for name in re.findall(r"`([\w.]+)`", walks) if re.search(r"_|[A-Z]|\w\.\w", name)}
    everywhere = {name for room in drawn_rooms(PAGE) for name in defined_names(room)}
    files = {path.name for _, path in package_files()} | {"records.jsonl"}
    assert len(named) > 25
    assert named <= everywhere | files, sorted(named - everywhere - files)
