"""The examples in README and docstrings run, and links between documents lead somewhere."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import acil

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def modules() -> list[str]:
    return [
        info.name
        for info in pkgutil.walk_packages(acil.__path__, "acil.")
        if "__main__" not in info.name
    ]


def test_readme_quick_start_is_six_lines_and_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (quick_start,) = blocks((ROOT / "README.md").read_text(), "python")
    lines = [line for line in quick_start.splitlines() if line.strip()]
    assert len(lines) == 6
    exec(compile(quick_start, "README.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0.97


@pytest.mark.parametrize("name", modules())
def test_docstring_examples_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_some_docstrings_have_examples():
    counts = [doctest.testmod(importlib.import_module(name)).attempted for name in modules()]
    assert sum(counts) >= 10


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_to_files(document):
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_names_in_code_font_that_look_like_our_files_exist(document):
    for name in re.findall(
        r"`((?:src|tests|docs|benchmarks|examples|analytic)/[\w./]+\.\w+)`", document.read_text()
    ):
        if name.startswith("analytic/"):
            name = f"src/acil/{name}"
        assert (ROOT / name).exists(), f"{document.name} names {name}"
