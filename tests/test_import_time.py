"""`import acil` stays light: torch and scikit-learn are loaded when something needs them."""

import subprocess
import sys

#: Seconds that acil may add to what importing torch and scikit-learn takes anyway.
PACKAGE_SECONDS = 0.3
CLASSIFIER_SECONDS = 1.5
RUNS = 5

TIMER = """
import time
import torch, sklearn
start = time.perf_counter()
import acil
package = time.perf_counter()
acil.ACILClassifier
print(package - start, time.perf_counter() - start)
"""


def python(source: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=True
    )
    return finished.stdout


def test_import_adds_little_to_torch_and_sklearn():
    # Tried again, because a busy machine makes imports slower; nothing makes them faster.
    for _ in range(RUNS):
        package, classifier = map(float, python(TIMER).split())
        if package <= PACKAGE_SECONDS and classifier <= CLASSIFIER_SECONDS:
            return
    raise AssertionError(f"importing took {package} and {classifier} s")


def test_a_plan_of_imagenet_loads_no_sklearn(tmp_path):
    """Torch takes most of the two seconds that a plan may take."""
    loaded = python(
        "import sys; from acil.cli import app; "
        f"app(['bench', 'run', '--dataset', 'imagenet:{tmp_path}', '--dry-run', '--seeds', '0'], "
        "standalone_mode=False); print(*({'torch', 'sklearn'} & set(sys.modules)))"
    )
    assert "1281167 training and 50000 test images" in loaded
    assert loaded.split()[-1] == "torch"


def test_import_loads_neither_torch_nor_sklearn():
    loaded = python(
        "import sys, acil; print(*({'torch', 'sklearn', 'numpy', 'acil'} & set(sys.modules)))"
    )
    assert loaded.split() == ["acil"]
