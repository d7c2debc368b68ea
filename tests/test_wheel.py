"""The built wheel works in an environment that has nothing else."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

USE_ONCE = """
import numpy as np
from acil import ACILClassifier, load, save
X = np.repeat(np.eye(3), 5, axis=0)
y = np.repeat(["a", "b", "c"], 5)
clf = ACILClassifier(expansion_size=16).partial_fit(X[:10], y[:10]).partial_fit(X[10:], y[10:])
save(clf, "model.acil")
print(load("model.acil").score(X, y))
"""


def run(*command: object, **options: object) -> str:
    finished = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_is_usable_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*install, "-c", ROOT / "constraints.txt", "torch")
    run(*install, "-c", ROOT / "constraints.txt", wheel)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert float(run(python, "-c", USE_ONCE, cwd=tmp_path, env=clean)) == 1.0
    assert "acil" in run(tmp_path / "env" / "bin" / "acil", "--version", cwd=tmp_path, env=clean)
    described = run(
        tmp_path / "env" / "bin" / "acil", "inspect", "model.acil", "--json", cwd=tmp_path, env=clean
    )
    assert '"b"' in described


def test_wheel_holds_the_type_marker_and_no_tests(wheel):
    import zipfile

    names = zipfile.ZipFile(wheel).namelist()
    assert "acil/py.typed" in names
    assert {"acil/serve/static/index.html", "acil/serve/static/page.js"} <= set(names)
    assert not [name for name in names if name.startswith("tests")]
