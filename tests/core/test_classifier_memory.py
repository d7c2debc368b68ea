"""Memory: blocks, not whole arrays; one factor beside the sums, not three matrices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")

MEASURE = """
import json, os, sys, threading, time
from pathlib import Path
import numpy as np
import torch
from acil.core.classifier import learnt_of
from acil import ACILClassifier

def status(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024

def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")

def warm_up():
    # Libraries allocate their own buffers at the first call of each kind.
    X = np.random.default_rng(0).normal(size=(300, 8))
    model = ACILClassifier(scores="ridge", expansion_size=100, gamma=1e-8).fit(X, np.arange(300) % 3)
    model.predict_proba(X)
    model.condition_

class Sampler(threading.Thread):
    # RssAnon has no peak in /proc: look at it often.
    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.stop = 0, False
    def run(self):
        while not self.stop:
            self.peak = max(self.peak, status("RssAnon"))
            time.sleep(0.002)
"""


def measure(body, **values):
    """Run code in a process of its own and return what it reports."""
    code = MEASURE + "values = json.loads(sys.argv[1])\n" + body
    # A fixed threshold makes glibc return each large block when it is freed. By default the heap keeps
    # some of them, depending on the machine, and what is measured is no longer what is in use.
    allocator = {"MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2**20)}
    environment = os.environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"} | allocator
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, json.dumps(values)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LEARN_FILE = """
width = 256
n = values["bytes"] // (4 * width)
with open(values["path"], "wb") as file:
    file.truncate(n * width * 4)
X = np.memmap(values["path"], dtype=np.float32, mode="r", shape=(n, width))
y = np.arange(n, dtype=np.int32) % 4
warm_up()
before = status("RssAnon")
sampler = Sampler(); sampler.start()
model = ACILClassifier(scores="ridge", expansion_size=values["size"], gamma=1.0).fit(X, y)
sampler.stop = True; sampler.join()
print(json.dumps({"grown": sampler.peak - before, "samples": model.n_samples_, "n": n}))
"""


@pytest.mark.parametrize("size", [300_000_000, pytest.param(1_500_000_000, marks=pytest.mark.slow)])
def test_a_file_larger_than_the_blocks_is_learnt_in_little_memory(tmp_path, size):
    # A sparse file takes no disk; its pages are file-backed and do not count as anonymous memory.
    report = measure(LEARN_FILE, path=str(tmp_path / "X.bin"), bytes=size, size=32)
    assert report["samples"] == report["n"]
    # In float64 the rows would take twice the size of the file. Labels and columns do grow with the
    # number of rows, by some tens of bytes for each.
    assert report["grown"] < 200e6


SOLVE = """
d = values["size"]
rng = np.random.default_rng(0)
X = rng.normal(size=(values["n"], 64)).astype(np.float32)
y = np.arange(len(X)) % 10
warm_up()
model = ACILClassifier(scores="ridge", expansion_size=d, gamma=values["gamma"], dtype=values["dtype"])
model.partial_fit(X[:16], y[:16], classes=np.arange(10))  # allocates the sums and the projection
learnt_of(model).model.head.sums.gram.fill_(0.0)
model.partial_fit(X[:16], y[:16])
before = status("VmRSS")
reset_peak()
model.partial_fit(X, y)
scores = model.decision_function(X[:16])
peak = status("VmHWM")
assert np.isfinite(scores).all()
print(json.dumps({"solve": peak - before, "matrix": d * d * 8}))
"""

#: Beyond the sums, in matrices of d × d float64 numbers.
EXTRA_MATRICES = 1.25
#: Blocks and panels, which do not grow with d²: less than one more matrix at the widths used here.
CONSTANT = 64e6


@pytest.mark.parametrize("dtype", ["float64", pytest.param("mixed", marks=pytest.mark.slow)])
def test_learning_and_solving_take_one_factor_beside_the_sums(dtype):
    report = measure(SOLVE, size=3072, n=4000, gamma=1e4, dtype=dtype)
    assert report["solve"] <= EXTRA_MATRICES * report["matrix"] + CONSTANT


@pytest.mark.slow
@pytest.mark.parametrize("n", [9000, 1000])
def test_width_8192_takes_a_quarter_matrix_more_than_its_factor(n):
    report = measure(SOLVE, size=8192, n=n, gamma=1e3, dtype="float64")
    assert report["solve"] <= EXTRA_MATRICES * report["matrix"]
