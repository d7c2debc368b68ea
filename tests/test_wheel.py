"""The built wheel works in an environment that has nothing else."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: The first lines of Python that a reader of the README meets.
QUICK_START = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)[0]


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


@pytest.mark.slow
def test_quick_start_of_the_readme_runs_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    bin = tmp_path / "env" / "bin"
    install = [bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*install, "-c", ROOT / "constraints.txt", "torch")
    run(*install, "-c", ROOT / "constraints.txt", wheel)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    saved = "import acil; acil.save(clf, 'digits.acil')"
    run(bin / "python", "-W", "error", "-c", QUICK_START + saved, cwd=tmp_path, env=clean)
    assert "acil" in run(bin / "acil", "--version", cwd=tmp_path, env=clean)
    assert '"classes"' in run(bin / "acil", "inspect", "digits.acil", "--json", cwd=tmp_path, env=clean)
    names = {line.split("==")[0].lower() for line in run(*install[:3], "freeze").splitlines()}
    assert not names & {"pillow", "matplotlib", "pooch", "fastapi", "onnx", "pandas"}


def test_wheel_holds_the_type_marker_and_no_tests(wheel):
    import zipfile

    names = zipfile.ZipFile(wheel).namelist()
    assert "acil/py.typed" in names
    assert {"acil/serve/static/index.html", "acil/serve/static/page.js"} <= set(names)
    assert not [name for name in names if name.startswith("tests")]
