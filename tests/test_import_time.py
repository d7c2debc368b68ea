"""`import acil` stays light: torch and scikit-learn are loaded when something needs them."""

import subprocess
import sys

import pytest

#: Seconds that acil may add to what importing torch and scikit-learn takes anyway.
PACKAGE_SECONDS = 0.3
CLASSIFIER_SECONDS = 1.5
RUNS = 3

TIMER = """
import time
import torch, sklearn
start = time.perf_counter()
{statement}
print(time.perf_counter() - start)
"""


def python(source: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=True
    )
    return finished.stdout


@pytest.mark.parametrize(
    ("statement", "limit"),
    [("import acil", PACKAGE_SECONDS), ("import acil; acil.ACILClassifier", CLASSIFIER_SECONDS)],
)
def test_import_adds_little_to_torch_and_sklearn(statement, limit):
    # The fastest of some runs: a busy machine makes imports slower, never faster.
    assert min(float(python(TIMER.format(statement=statement))) for _ in range(RUNS)) <= limit


def test_import_loads_neither_torch_nor_sklearn():
    loaded = python(
        "import sys, acil; print(*({'torch', 'sklearn', 'numpy', 'acil'} & set(sys.modules)))"
    )
    assert loaded.split() == ["acil"]


def test_touching_the_classifier_loads_torch():
    assert python("import sys, acil; acil.ACILClassifier; print('torch' in sys.modules)") == "True\n"
