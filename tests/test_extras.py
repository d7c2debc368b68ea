"""What an error advises to install can be installed: packages, from an index that has them."""

import re
import tomllib
from pathlib import Path

import pytest

from acil import extras

ROOT = Path(__file__).parents[1]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def no_metadata(name):
    raise extras.metadata.PackageNotFoundError(name)


#: They only name other extras.
GROUPS = {name for name, lines in DECLARED.items() if lines[0].startswith("acil[")}


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    """What the package says when it is installed as it is now."""
    lines = [f'{line}; extra == "{name}"' for name, given in DECLARED.items() for line in given]
    monkeypatch.setattr(extras.metadata, "requires", lambda name: lines)


@pytest.mark.parametrize("name", sorted(DECLARED.keys() - GROUPS - set(extras.FOR_DEVELOPERS)))
def test_the_command_names_the_packages_of_the_extra(name):
    packages = {re.split(r"[><=\[]", line)[0].replace("_", "-") for line in DECLARED[name]}
    pip, install, *named = extras.install(name).replace("_", "-").split()
    assert (pip, install, {*named}) == ("pip", "install", packages)


def test_several_extras_are_one_command(monkeypatch):
    assert extras.install("timm", "heic") == "pip install timm pillow-heif"
    # In a source folder that was never installed the packages are not known; there is a clone, though.
    monkeypatch.setattr(extras.metadata, "requires", no_metadata)
    assert extras.install("timm", "heic") == 'pip install -e ".[timm,heic]"'


def test_no_message_has_a_command_of_its_own_for_an_extra():
    optional = {re.split(r"[><=\[]", line)[0] for lines in DECLARED.values() for line in lines}
    for path in (ROOT / "src").rglob("*.py"):
        if path.name != "extras.py":
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"acil\[\w", text), f"acil is on no index: {path}"
            for named in re.findall(r"pip install ([\w -]+)", text):
                assert not (optional - {"pandas", "pyarrow"}) & {*named.split()}, (
                    f"{path}: use acil.extras.install"
                )


def test_all_is_what_works_everywhere_and_the_old_name_still_does():
    (everything,) = DECLARED["all"]
    named = set(everything.removeprefix("acil[").removesuffix("]").split(","))
    # timm brings torchvision, of which not every build fits torch's.
    assert named == DECLARED.keys() - GROUPS - {"timm"} - set(extras.FOR_DEVELOPERS)
    assert DECLARED["efficientnet"] == ["acil[images]"]
