"""The `acil` command itself: exits and streams. Each test runs a real process."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import acil

ROOT = Path(__file__).parents[2]

# A command that fails in a chosen way, added to the real ones.
PROBE = """
import signal
from acil.cli import app, main
from acil.errors import InputError

@app.command("probe")
def probe(how: str):
    if how == "acil":
        raise InputError("The file has 3 [legs], but a model has none.")
    if how == "interrupt":
        signal.raise_signal(signal.SIGINT)
    if how == "bug":
        raise ZeroDivisionError("our mistake")
    if how == "file":
        open("/dev/null/x\\x1b")
    if how == "talk":
        print("word " * 100_000)

# A shell that starts tests in the background has them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


def run(*command: str, **options) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80"}
    options = {"stdout": subprocess.PIPE, **options}
    return subprocess.run(
        [sys.executable, *command],
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        env=environment,
        **options,
    )


def acil_command(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return run("-m", "acil", *arguments, **options)


def test_version_goes_to_stdout():
    result = acil_command("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"acil {acil.__version__}\n", "")


def test_entry_point_of_the_package_is_the_command():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, function = project["scripts"]["acil"].split(":")
    assert getattr(importlib.import_module(module), function) is importlib.import_module("acil.cli").main


def test_no_arguments_shows_help():
    result = acil_command()
    assert "Usage: acil [OPTIONS] COMMAND" in result.stdout + result.stderr
    assert "doctor" in result.stdout + result.stderr


def test_help_cuts_nothing_off_in_a_terminal_of_80_columns():
    for group, command in (([], "learn"), (["bench"], "run"), (["data"], "prepare")):
        summaries = acil_command(*group, "--help").stdout.rpartition("Commands")[2]
        assert command in summaries
        assert "..." not in summaries
    told = acil_command("learn", "--help").stdout
    assert "module:PACKAGE.MODULE.NAME" in told
    assert "nothing learnt before is lost. No sample\n  is stored." in told


@pytest.mark.parametrize("arguments", [["nosuch"], ["--nosuch"], ["doctor", "--nosuch"], ["inspect"]])
def test_wrong_usage_exits_with_2_and_leaves_stdout_empty(arguments):
    result = acil_command(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Usage: acil" in result.stderr


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("acil", 1, r"error: The file has 3 \[legs\], but a model has none\.\n"),
        ("file", 1, r"error: Not a directory: /dev/null/x\\x1b\. Check path and permissions\.\n"),
        ("interrupt", 130, r"interrupted\n"),
        ("bug", 1, r"Traceback \(most recent call last\):[^┃│]*ZeroDivisionError: our mistake\n"),
    ],
)
def test_errors_go_to_stderr_ours_in_one_line_and_bugs_as_a_plain_traceback(how, code, told):
    result = run("-c", PROBE, "probe", how)
    assert (result.returncode, result.stdout) == (code, "")
    assert re.fullmatch(told, result.stderr)


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["probe", "talk"]], ids=["short", "help", "long"]
)
def test_closed_pipe_is_silent(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = run("-c", PROBE, *arguments, stdout=writer)
    finally:
        os.close(writer)
    assert result.returncode == 1
    assert result.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is full")
@pytest.mark.parametrize("arguments", [["--version"], ["probe", "talk"]], ids=["short", "long"])
def test_a_full_disk_behind_stdout_is_told(arguments):
    with Path("/dev/full").open("w") as full:
        result = run("-c", PROBE, *arguments, stdout=full)
    assert result.returncode == 1
    assert re.fullmatch("error: No space left on device: [^\n]*\n", result.stderr)
