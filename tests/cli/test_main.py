"""The `acil` command itself: exits, streams and what it imports. Each test runs a real process."""

import importlib
import os
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
    if how == "talk":
        print("word " * 100_000)

# A shell that starts tests in the background has them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""

# Runs the command, then tells on stderr which of the named modules it has loaded.
LOADED = """
import sys
from acil.cli import main
try:
    main()
finally:
    sys.stderr.write(" ".join({"torch", "sklearn", "scipy", "matplotlib"} & set(sys.modules)))
"""


def run(*command: str, **options) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
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


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["doctor", "--help"], ["inspect", "-h"]]
)
def test_help_and_version_do_not_wait_for_heavy_imports(arguments):
    result = run("-c", LOADED, *arguments)
    assert result.returncode == 0
    assert result.stdout
    assert result.stderr == ""


def test_probe_of_loaded_modules_notices_a_heavy_import():
    assert "sklearn" in run("-c", "import sklearn\n" + LOADED, "--help").stderr


def test_help_lists_every_command():
    help_text = acil_command("--help").stdout
    assert "doctor" in help_text
    assert "inspect" in help_text


def test_inspect_is_registered_with_its_json_option():
    result = acil_command("inspect", "--help")
    assert result.returncode == 0
    assert "MODEL" in result.stdout.upper()
    assert "--json" in result.stdout


def test_no_arguments_shows_help():
    result = acil_command()
    assert "Usage: acil [OPTIONS] COMMAND" in result.stdout + result.stderr
    assert "doctor" in result.stdout + result.stderr


@pytest.mark.parametrize("arguments", [["nosuch"], ["--nosuch"], ["doctor", "--nosuch"], ["inspect"]])
def test_wrong_usage_exits_with_2_and_leaves_stdout_empty(arguments):
    result = acil_command(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Usage: acil" in result.stderr


def test_error_of_ours_is_one_line_on_stderr():
    result = run("-c", PROBE, "probe", "acil")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == "error: The file has 3 [legs], but a model has none.\n"


def test_missing_model_is_told_without_a_traceback(tmp_path):
    result = acil_command("inspect", str(tmp_path / "nosuch.acil"))
    assert result.returncode in (1, 2)
    assert result.stdout == ""
    assert "nosuch.acil" in "".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_interrupt_exits_with_130():
    result = run("-c", PROBE, "probe", "interrupt")
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_unexpected_error_gives_a_plain_traceback():
    result = run("-c", PROBE, "probe", "bug")
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert result.stderr.endswith("ZeroDivisionError: our mistake\n")


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["probe", "talk"]], ids=["short", "rich", "long"]
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
