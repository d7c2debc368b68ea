"""What the counter of files says: the learner alone needs no other house."""

from benchmarks.walks import learner

#: Files that a call enters at most.
BARS = {"partial_fit": 8, "predict": 5}


def test_learning_and_predicting_stay_in_the_core():
    for name, files in learner().items():
        assert "core/classifier.py" in files, name
        assert all(file.startswith("core/") for file in files), name
        assert len(files) <= BARS[name], name
