"""The commands for own texts with the default network: its page of the documentation, and kills."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from acil.cli import app
from acil.core.files import describe, verify
from acil.encoders.text import open_encoder

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Work in a folder that has the texts of the documentation where the clone has them."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "text").symlink_to(ROOT / "docs" / "text")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_and_the_python_of_the_page_run(clone, capsys):
    text = (ROOT / "docs" / "text.md").read_text()
    tutorial = text.partition("## Tables and folders")[0]
    outputs = {}
    for block in re.findall(r"^```console\n(.*?)^```", tutorial, flags=re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            program, *arguments = shlex.split(line.removeprefix("$ "))
            if program != "acil":
                continue
            result = CliRunner().invoke(app, arguments)
            refused = "--class" in arguments  # as the page says
            assert result.exit_code == refused, f"{line}\n{result.output}"
            outputs[line] = result.stdout
    assert len(outputs) >= 8
    evaluated = [shown for line, shown in outputs.items() if "evaluate" in line]
    assert all(float(re.findall(r"accuracy ([\d.]+) %", shown)[0]) >= 80 for shown in evaluated)
    capsys.readouterr()
    (code,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    exec(compile(code, "docs/text.md", "exec"), {})
    assert capsys.readouterr().out.startswith("trade-in ")
    assert describe("desk.acil")["backbone"] == open_encoder().identity


def test_kill_at_any_moment_leaves_the_old_or_the_new_model(clone):
    learn = [sys.executable, "-m", "acil", "learn", "--model", "desk.acil"]
    subprocess.run([*learn, "docs/text/tickets.csv"], check=True)
    before = Path("desk.acil").read_bytes()
    start = time.monotonic()
    subprocess.run([*learn, "docs/text/new.csv"], check=True)
    length = time.monotonic() - start
    seen = set()
    for share in (0.3, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0):
        Path("desk.acil").write_bytes(before)
        process = subprocess.Popen([*learn, "docs/text/new.csv"], stderr=subprocess.DEVNULL)
        time.sleep(share * length)
        process.send_signal(signal.SIGKILL)
        process.wait()
        classes = len(describe("desk.acil")["classes"])
        seen.add(classes)
        assert classes in (5, 6)
        assert all(check.ok for check in verify("desk.acil"))
        if classes == 5:
            assert Path("desk.acil").read_bytes() == before
    # It can still be taught.
    Path("desk.acil").write_bytes(before)
    subprocess.run([*learn, "docs/text/new.csv"], check=True, env={**os.environ})
    assert len(describe("desk.acil")["classes"]) == 6
    assert 5 in seen


def test_two_commands_at_once_give_both_results(clone):
    learn = [sys.executable, "-m", "acil", "learn", "--model", "desk.acil"]
    files = ("docs/text/tickets.csv", "docs/text/new.csv")
    running = [subprocess.Popen([*learn, file], stderr=subprocess.PIPE) for file in files]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert sorted(describe("desk.acil")["counts"]) == [5, 10, 10, 10, 10, 10]
