"""What each command says, word for word: one file of tests/cli/messages for each.

After a change of words, write the files anew, and read the difference:

    UPDATE_MESSAGES=1 .venv/bin/python -m pytest tests/cli/test_messages.py
"""

import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from acil.cli import app

MESSAGES = Path(__file__).parent / "messages"
#: In this order, in one folder.
SESSION = """
acil learn broken.csv --model m.acil
acil learn pets.csv --model m.acil
acil learn owls.csv --model m.acil
acil learn broken.csv --model m.acil
acil learn nothing.csv --model m.acil
acil predict m.acil test.csv --top 1
acil predict m.acil strange.csv --top 1
acil predict nothing.acil test.csv
acil evaluate m.acil test.csv
acil evaluate m.acil strange.csv
acil suggest m.acil test.csv --top 1
acil suggest nothing.acil test.csv
acil inspect m.acil
acil inspect pets.csv
acil verify m.acil
acil verify damaged.acil
acil history m.acil
acil rename m.acil owl bird
acil rename m.acil owl bird
acil merge-classes m.acil cat dog --into pet
acil merge-classes m.acil cat dog --into pet
acil undo m.acil
acil forget m.acil some.csv
acil forget m.acil strange.csv
acil undo m.acil --to 1
acil undo m.acil
acil audit m.acil
acil audit m.acil --images test.csv
acil export m.acil --inference small.acil
acil export small.acil --inference again.acil
acil inspect small.acil
acil merge m.acil m.acil --out two.acil
acil merge m.acil small.acil --out other.acil
acil embed nothing --out features.npz
acil serve damaged.acil
acil bench run --dataset digits --device cpu --dry-run
acil bench run --dataset digits --method nosuch
acil bench report nothing
acil data prepare digits
acil data prepare nosuch
"""
#: These say what this machine has, or what there is in the package.
NO_SESSION = {"doctor", "bench list", "bench choose"}
#: What differs from machine to machine or from day to day → what stands for it.
VARYING = {
    r"[0-9a-f]{64}": "HASH",
    r"\d{4}-\d\d-\d\d \d\d:\d\d": "DATE",
    r"\d+\.\d+(e[-+]\d+)?": "#",
    r"\b\d+ (s|min|h)\b": r"# \1",
    r"(?m)(?<=^condition κ  )\d+|(?<=count as )\d+|(?<=^versions     ).*": "#",
    r"[\d,]+ bytes|(?m:^(header|total) +[\d,]+$)": "# bytes",
}


def write_table(path, classes, each, seed):
    """Write features of four columns, in which classes are far apart, and a column of labels."""
    generator, lines = np.random.default_rng(seed), ["a,b,c,d,label"]
    for name in classes:
        rows = 10 * np.eye(4)[["cat", "dog", "owl", "fox"].index(name)] + generator.normal(
            size=(each, 4)
        )
        lines += [",".join([*(f"{value:.6f}" for value in row), name]) for row in rows]
    path.write_text("\n".join(lines) + "\n")


def all_commands(group, words=()):
    inside = getattr(group, "commands", None)
    if inside is None:
        return [" ".join(words)]
    return [name for word in inside for name in all_commands(inside[word], (*words, word))]


COMMANDS = [name for name in all_commands(typer.main.get_command(app)) if name not in NO_SESSION]


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory):
    """Return what each command has said in the session, with the lines on stderr marked."""
    folder, said = tmp_path_factory.mktemp("session"), {}
    write_table(folder / "pets.csv", ["cat", "dog"], 30, 0)
    write_table(folder / "owls.csv", ["owl"], 30, 1)
    write_table(folder / "test.csv", ["cat", "dog", "owl"], 3, 2)
    write_table(folder / "some.csv", ["cat"], 30, 0)
    write_table(folder / "strange.csv", ["fox"], 1, 3)
    (folder / "broken.csv").write_text("a,b,label\n1,x,cat\n")
    (folder / "damaged.acil").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "120")
        for line in SESSION.strip().splitlines():
            words = shlex.split(line)[1:]
            result = CliRunner().invoke(app, words)
            assert result.exception is None or isinstance(result.exception, SystemExit), line
            errors = "".join(f"! {told}\n" for told in result.stderr.splitlines())
            text = f"$ {line}\n{result.stdout}{errors}(exit {result.exit_code})\n"
            for pattern, stands in VARYING.items():
                text = re.sub(pattern, stands, text)
            name = " ".join(words[:2] if words[0] in ("bench", "data") else words[:1])
            said[name] = said.get(name, "") + text
    return said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_this(transcripts, name):
    file = MESSAGES / f"{name.replace(' ', '-')}.txt"
    if os.environ.get("UPDATE_MESSAGES"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(transcripts[name], encoding="utf-8")
    assert file.exists(), "a command that is new: see the top of this file"
    assert transcripts[name] == file.read_text(encoding="utf-8"), "if this is meant: see the top"


def test_no_file_is_left_of_a_command_that_is_gone():
    assert {file.stem for file in MESSAGES.iterdir()} == {name.replace(" ", "-") for name in COMMANDS}
