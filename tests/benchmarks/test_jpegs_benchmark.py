"""The benchmark of training from JPEG files runs, in small, and compares within one run."""

import pytest

from benchmarks import jpegs


@pytest.mark.slow
def test_rates_and_ratios_of_a_small_run(tmp_path):
    small = (
        "--small --size 16 --files 24 --epoch 300 --seconds 0.1 --rounds 1 --batch-size 8 --workers 1"
    )
    run = "--train-images 1 --test-images 1 --epochs 1 --width 32 --device cpu"
    found = jpegs.main([*small.split(), *run.split(), "--folder", str(tmp_path)])
    assert 100e3 < found["file_bytes"] < 140e3
    assert found["loader_to_bare"] == pytest.approx(found["loader"] / found["bare"])
    rates = (found[name]["images_per_second"] for name in ("from_files", "tensors"))
    assert found["files_to_tensors"] == pytest.approx(next(rates) / next(rates))
    assert (found["run"]["phases"], found["run"]["training_per_second"] > 0) == (5, True)
    assert not list(tmp_path.iterdir())
