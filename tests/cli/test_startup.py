"""The command starts without what it does not use."""

import os
import subprocess
import sys

import numpy as np
import pytest
import typer
from PIL import Image

from acil.cli import app
from support.pictures import draw, network_file

#: Processor time of `acil learn` of 30 photographs, start-up included, in units of importing torch and
#: scikit-learn. With one thread it was 1.7 when this was written.
IMPORTS = 2.0
ROUNDS = 3

#: What takes long to import.
HEAVY = {"torch", "sklearn", "sklearn.metrics", "scipy", "matplotlib"}
#: Runs the command, and prints in the end which of these modules it has loaded.
LOADED = f"""
import sys
from acil.cli import main
sys.argv[0] = "acil"
try:
    main()
except SystemExit as end:
    assert not end.code
print(*({HEAVY} & set(sys.modules)))
"""


def all_commands(group, words=()):
    """Return the words of a command and of those in it."""
    inside = getattr(group, "commands", {})
    return [words, *(found for name in inside for found in all_commands(inside[name], (*words, name)))]


def loaded(*arguments):
    command = [sys.executable, "-c", LOADED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()[-1].split()


def test_learning_leaves_out_what_it_does_not_need(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = network_file(tmp_path / "network.onnx")
    draw(tmp_path / "train", 2)
    arguments = ("--model", tmp_path / "m.acil", "--backbone", f"onnx:{network}")
    found = loaded("learn", tmp_path / "train", *arguments)
    assert "torch" in found
    assert "sklearn.metrics" not in found


def test_help_and_version_import_neither_torch_nor_scikit_learn():
    # In one process, since what one command loads stays loaded: the first in the answer is to blame.
    ask = f"""
{LOADED.partition("try:")[0]}
for words in sys.argv[1:]:
    sys.argv = ["acil", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code
    print(words, *({HEAVY} & set(sys.modules)), file=sys.stderr)
"""
    groups = all_commands(typer.main.get_command(app))
    commands = ["--version", *(" ".join((*words, "--help")) for words in groups)]
    command = [sys.executable, "-c", ask, *commands]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.splitlines() == commands
    assert done.stdout.count("Usage: ") == len(groups) > 20


@pytest.mark.parametrize("command", ["predict", "evaluate", "forget", "inspect", "verify", "export"])
def test_a_model_that_is_not_there_is_told_before_torch_is_imported(command, tmp_path):
    (tmp_path / "a.png").touch()
    images = [] if command in ("inspect", "verify", "export") else [tmp_path / "a.png"]
    ask = LOADED.replace("assert not end.code", "assert end.code == 1")
    command = [sys.executable, "-c", ask, command, tmp_path / "m.acil", *images]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=120, check=True
    )
    assert f"There is no model {tmp_path / 'm.acil'}" in done.stderr
    assert done.stdout.split() == []


def seconds(*arguments):
    """Return the processor time of a process: on a busy machine the other time says little."""
    before = os.times()
    subprocess.run([sys.executable, *map(str, arguments)], check=True, capture_output=True)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


@pytest.mark.slow
def test_a_class_of_thirty_photographs_is_learnt_in_twice_the_time_of_imports(tmp_path, capsys):
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("onnxruntime")
    generator = np.random.default_rng(0)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        for i in range(30):
            coarse = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((500, 375)).save(tmp_path / name / f"{i}.jpg", quality=90)
    learn = ("-m", "acil", "learn", "--model", tmp_path / "m.acil")
    seconds(*learn, tmp_path / "first", "--class", "first")
    made = (tmp_path / "m.acil").read_bytes()
    times = []
    for _ in range(ROUNDS):
        (tmp_path / "m.acil").write_bytes(made)
        learning = seconds(*learn, tmp_path / "second", "--class", "second")
        times.append((learning, seconds("-c", "import torch, sklearn.base")))
    # The least of each: a busy machine makes both slower, never faster.
    learning, importing = (min(column) for column in zip(*times, strict=True))
    with capsys.disabled():
        print(f"\nlearnt in {learning:.2f} s of processor time, libraries imported in {importing:.2f} s")
    assert learning <= IMPORTS * importing


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "active")]
)
def test_threads_that_are_done_wait_asleep_unless_the_caller_says_otherwise(given, expected):
    script = """
import os, sys
from acil import cli
cli.app = lambda **options: print(os.environ["OMP_WAIT_POLICY"], "torch" in sys.modules)
cli.main()
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, env={**environment, **given}, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [given.get("OMP_WAIT_POLICY", "PASSIVE"), "False"]
