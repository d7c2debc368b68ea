"""The head of a run of CIFAR-100's size, and all around it, in 6 GiB."""

import subprocess
import sys

import numpy as np
import pytest
from running import records

#: What the whole process may take, in bytes: Python, torch and SciPy included.
MOST = 6 * 2**30
#: Runs the command in a child and tells its peak, which no other child of the tests can have raised.
MEASURED = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, "-m", "acil", "bench", "run", *sys.argv[1:]]).returncode
print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Features as ResNet-32 has them of CIFAR-100: 50,000 and 10,000 rows of 64 numbers."""
    rng = np.random.default_rng(0)
    centres = rng.normal(scale=0.5, size=(100, 64))
    arrays = {}
    for split, count in (("train", 500), ("test", 100)):
        labels = np.repeat(np.arange(100), count)
        noisy = centres[labels] + rng.normal(size=(len(labels), 64))
        arrays |= {
            f"{split}_features": np.maximum(noisy, 0).astype(np.float32),
            f"{split}_labels": labels,
        }
    path = tmp_path_factory.mktemp("features") / "cifar-like.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phases", "joint"),
    # Peak memory does not depend on the number of phases, once there are some: the sums are in place
    # and each factor replaces the last. Fifty take twenty minutes on two busy cores.
    [(3, "true"), (50, "false")],
)
def test_peak_of_a_cifar_sized_run_with_a_wide_head(features, tmp_path, phases, joint):
    arguments = ["--dataset", f"features:{features}", "--phases", str(phases), "--seeds", "0"]
    arguments += ["--expansion-size", "8192", "--gamma", "1", "--set", f"joint_check={joint}"]
    command = [sys.executable, "-c", MEASURED, *arguments, "--out", str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = int(result.stdout.split("peak ")[-1])
    (summary,) = records(tmp_path / "run", "summary")
    assert summary["settings"]["expansion_size"] == 8192
    # The matrix alone is 0.5 GiB: less would mean that something else was measured.
    assert 2**30 < peak <= MOST
