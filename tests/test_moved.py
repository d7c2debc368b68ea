"""Modules that moved in 0.1 are found under the names that documents gave them before."""

import importlib
import subprocess
import sys

import pytest

from acil.moved import MOVED, new_name


@pytest.mark.parametrize("old", [*MOVED, "acil.vision.backbones", "acil.benchmark.datasets.digits"])
def test_an_old_name_is_the_same_module_as_the_new_one(old):
    assert importlib.import_module(old) is importlib.import_module(new_name(old))


def test_old_names_give_the_same_classes_whichever_comes_first():
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "from acil.distributed.group import Group as old\n"
        "from acil.scale import Group as new\n"
        "import acil.images, acil.vision.augment, acil.benchmark\n"
        "assert old is new and acil.benchmark.run is __import__('acil.bench').bench.run\n"
        "assert new.__module__ == 'acil.scale.group', new.__module__\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_names_are_still_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"acil\.nothing"):
        importlib.import_module("acil.nothing")
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        importlib.import_module("acil.vision.nothing")
