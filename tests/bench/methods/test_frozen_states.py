"""What holds for every method on frozen features: states, edges, errors."""

from dataclasses import replace

import pytest
import torch

from acil.bench.job import StateFile
from acil.bench.methods import MemoryUse
from acil.errors import InputError, NotFittedError
from support.frozen_phases import (
    FROZEN,
    GROUPS,
    gaussians,
    learnt,
    method,
    phase,
    phases,
    vectors,
)
from support.replay_problem import make_phases
from support.small_training import same_state

ALL = pytest.mark.parametrize("name", ["acil", *FROZEN])


@ALL
@pytest.mark.parametrize("after", [0, 1, 2])
# Few samples at a time is where the head of ACIL would rather correct its factor than make a new one.
@pytest.mark.parametrize("per_class", [12, 2])
def test_resumed_from_the_state_file_it_ends_with_the_same_bits(name, after, per_class, tmp_path):
    features, labels = gaussians(per_class=per_class)
    all_phases = phases(features, labels, GROUPS)
    # Prediction comes between the phases, as in a run: it must not leave anything behind.
    whole, file, predictions = method(name), StateFile(tmp_path / "state.safetensors"), []
    for index, one in enumerate(all_phases):
        whole.learn(one)
        predictions.append(whole.predict(vectors(features)))
        if index == after:
            file.save(index, whole.state_dict())
    index, state = file.load()
    # Into one that has learnt and predicted something else, of which nothing may stay.
    resumed = learnt(name, phases(features, labels, [(5, 2), (0,)]))
    resumed.predict(vectors(features))
    resumed.load_state_dict(state)
    assert torch.equal(resumed.predict(vectors(features)), predictions[after])
    assert resumed.memory() != MemoryUse()
    for one in all_phases[index + 1 :]:
        resumed.learn(one)
    assert same_state(whole, resumed)
    assert whole.memory() == resumed.memory()
    assert torch.equal(resumed.predict(vectors(features)), predictions[-1])


SINGLE = [(c,) for c in range(6)]


@ALL
@pytest.mark.parametrize(("groups", "first"), [(GROUPS, 0), (GROUPS, 1), (SINGLE, 0)])
def test_predictions_are_mostly_right_and_cover_the_classes_seen(name, groups, first):
    """Also without a base phase, and with one class in a phase."""
    features, labels = gaussians(per_class=30)
    model = method(name)
    for index, one in enumerate(phases(features, labels, groups)):
        model.learn(replace(one, index=index + first))
        found = model.predict(vectors(features))
        assert found.dtype == torch.int64
        assert set(found.tolist()) <= set(range(max(one.classes) + 1))
    assert (found == labels).double().mean() > (0.6 if groups is SINGLE else 0.75)


@ALL
@pytest.mark.parametrize("groups", [GROUPS, SINGLE])
def test_one_sample_a_class(name, groups):
    features, labels = gaussians(per_class=1)
    model = learnt(name, phases(features, labels, groups))
    state = [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]
    assert all(bool(torch.isfinite(value).all()) for value in state)
    # Each sample is the mean of its class, and nothing is nearer to it.
    expected = 1.0 if name in ("fecam", "klda", "lda", "ncm", "slda") else 0.5
    if name in ("gkeal", "ranpac"):
        # As many centres as samples in the first phase; a choice of γ by one sample
        expected = 0.0
    assert (model.predict(vectors(features)) == labels).double().mean() >= expected


@ALL
def test_bad_values_no_images_or_too_few_labels_change_nothing(name):
    features, labels = gaussians()
    base, other, _ = phases(features, labels, GROUPS)
    model, untouched = learnt(name, [base]), learnt(name, [base])
    for bad in (float("nan"), float("inf")):
        rows = other.images.features(None).clone()
        rows[3, 2] = bad
        with pytest.raises(InputError, match=r"phase 1 .*NaN"):
            model.learn(phase(rows, other.labels, 1))
        with pytest.raises(InputError, match="NaN"):
            model.predict(vectors(rows))
    for rows, chosen in ((features[:0], labels[:0]), (other.images.features(None), other.labels[1:])):
        with pytest.raises(InputError, match="label"):
            model.learn(phase(rows, chosen, 1))
    assert same_state(model, untouched)


#: Numbers of float64 of 6 classes and 8 features: (statistics, weights); a triangle of 8 has 36.
MEANS, COUNTS, TRIANGLE, WIDE = 6 * 8, 6, 36, 24 * 25 // 2
#: The sums of ACIL, and its weights and intercepts.
HEAD, SOLVED = WIDE + 6 * 24 + 24, 6 * 24 + 6
SIZES = {
    "ncm": (MEANS + COUNTS, 0),
    "lda": (MEANS + COUNTS + TRIANGLE, MEANS + COUNTS),
    "slda": (MEANS + COUNTS + TRIANGLE, MEANS + COUNTS),
    "fecam": (MEANS + COUNTS + 6 * TRIANGLE, 0),
    "fetril": (MEANS + COUNTS, MEANS + 6),
    # Both streams; the projection, of float32, once.
    "ds-al": (2 * (WIDE + 6 * 24) + 24, 2 * 6 * 24 + 6 + 8 * 24 // 2),
    **dict.fromkeys(("air", "g-air", "ranpac"), (HEAD, SOLVED + 8 * 24 // 2)),
    "aef-ocl": (HEAD + 2 * MEANS + COUNTS, SOLVED + 8 * 24 // 2),
    "anacp": (HEAD + MEANS + COUNTS + TRIANGLE, 2 * (SOLVED + 8 * 24 // 2) + MEANS),
    "gkeal": (HEAD, SOLVED),
    "klda": (6 * 24 + COUNTS + WIDE, SOLVED + (8 * 24 + 24) // 2),
}
#: Centres of kernels are samples.
SAMPLES = {"gkeal": 8 * 24 // 2}


@pytest.mark.parametrize("name", FROZEN)
def test_memory_counts_what_is_kept(name):
    features, labels = gaussians()
    use = learnt(name, phases(features, labels, GROUPS)).memory()
    expected = (SAMPLES.get(name, 0), *SIZES[name])
    assert (use.samples, use.statistics, use.weights) == tuple(8 * number for number in expected)


@ALL
def test_predicting_before_learning_is_an_error(name):
    with pytest.raises(NotFittedError):
        method(name).predict(vectors(torch.ones(2, 8)))


@pytest.mark.parametrize("name", FROZEN)
def test_no_image_gives_no_label(name):
    features, labels = gaussians()
    model = learnt(name, phases(features, labels, GROUPS))
    assert model.predict(vectors(features[:0])).tolist() == []


@ALL
def test_images_without_a_network_or_a_base_phase_are_refused(name):
    with pytest.raises(InputError, match="--backbone"):
        method(name).learn(make_phases(first_index=1)[0])
