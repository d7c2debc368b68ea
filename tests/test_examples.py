"""The examples do what they say."""

import re
import subprocess
import warnings
from functools import partial
from pathlib import Path

import pytest

from support.forks import finished

EXAMPLES = Path(__file__).parents[1] / "examples"
DIGITS = EXAMPLES / "digits.py"


def run(source: str) -> subprocess.CompletedProcess[str]:
    """Run a script, in which warnings are errors."""
    return finished(main=partial(execute, source))


def execute(source: str) -> None:
    warnings.simplefilter("error")
    exec(compile(source, "example", "exec"), {"__name__": "__main__"})


@pytest.fixture(scope="module")
def digits() -> subprocess.CompletedProcess[str]:
    return run(DIGITS.read_text(encoding="utf-8"))


def test_digits_runs_without_a_warning(digits):
    assert digits.stderr == ""
    assert digits.returncode == 0


def test_digits_learns_one_class_a_phase_and_forgets_nothing(digits):
    rows = re.findall(r"^ +(\d) +(\d+) +([\d.]+)% +([\d.]+)%$", digits.stdout, re.MULTILINE)
    assert [(int(phase), int(classes)) for phase, classes, *_ in rows] == [(k, 5 + k) for k in range(6)]
    first, last = rows[0], rows[-1]
    assert float(last[2]) > 97
    # What the base classes lose is confusion with new classes, some 1 %, not forgetting.
    assert float(first[3]) - float(last[3]) < 2


def test_digits_in_phases_equal_joint_learning(digits):
    rows = dict(re.findall(r"^(gram|recursive) +(\S+) +\S+$", digits.stdout, re.MULTILINE))
    assert set(rows) == {"gram", "recursive"}
    assert all(float(difference) < 1e-9 for difference in rows.values())


def test_digits_forgets_a_class_as_if_never_learnt(digits):
    assert "classes 0, 1, 2, 3, 4, 5, 6, 7, 8;" in digits.stdout
    (difference,) = re.findall(r"never learnt them: (\S+)$", digits.stdout, re.MULTILINE)
    assert float(difference) < 1e-9


def test_digits_fails_when_phases_differ_from_joint():
    source = DIGITS.read_text(encoding="utf-8")
    for old, new in {
        "TOLERANCE = 1e-9": "TOLERANCE = 0",
        "EXPANSION_SIZE = 1000": "EXPANSION_SIZE = 100",
    }.items():
        assert old in source
        source = source.replace(old, new)
    failed = run(source)
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: ")


def test_benchmark_compares_methods_on_features_from_python():
    done = run((EXAMPLES / "benchmark.py").read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\w+) +(\d) +([\d.]+)% +([\d.]+)%$", done.stdout, re.MULTILINE)
    assert [(method, int(seed)) for method, seed, *_ in rows] == [
        (method, seed) for seed in (0, 1) for method in ("acil", "ncm", "lda")
    ]
    last = {method: float(accuracy) for method, _, _, accuracy in rows}
    assert last["acil"] > last["lda"] > last["ncm"]
