"""What each method trains an increment with: its objective, its teacher and its data."""

import pytest
import torch
from replay_problem import make_context, make_phases

from acil.methods import resolve
from acil.methods.ewc import fisher_information, merged


def second_phase(name, fits, **settings):
    """Return the teacher, and what the second of two phases (3 + 2 classes) was trained with."""
    method = resolve(name)(make_context(settings=settings))
    base, phase = make_phases((3, 2))
    method.learn(base)
    teacher = method.network
    method.learn(phase)
    return teacher, *fits[-1]


NEW = [0, 0, 0, 16, 16]
WITH_EXEMPLARS = [4, 4, 4, 16, 16]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("finetune", NEW),
        ("lwf", NEW),
        ("ewc", NEW),
        ("joint", [16] * 5),
        ("lwf-exemplars", WITH_EXEMPLARS),
        ("icarl", WITH_EXEMPLARS),
        ("icarl-bce", WITH_EXEMPLARS),
        ("lucir", WITH_EXEMPLARS),
    ],
)
def test_data_are_the_new_images_and_what_is_kept(name, counts, fits):
    _, network, labels, _ = second_phase(name, fits)
    assert torch.bincount(labels).tolist() == counts
    assert network.n_classes == (6 if name == "icarl-bce" else 5)


@pytest.mark.parametrize(
    ("name", "settings", "weight", "new_only"),
    [
        ("lwf", {}, 3.0, True),
        ("lwf", {"lwf_distillation": 7.0}, 7.0, True),
        ("lwf-exemplars", {}, 1.0, False),
        ("icarl", {}, 1.0, False),
    ],
)
def test_scores_of_the_network_before_are_distilled(name, settings, weight, new_only, fits):
    teacher, network, _, objective = second_phase(name, fits, **settings)
    assert objective.teacher is teacher
    assert network is not teacher
    assert (objective.n_old, objective.temperature, objective.new_only) == (3, 2.0, new_only)
    assert (objective.cross_entropy, objective.distillation) == (1.0, weight)


def test_original_icarl_takes_the_old_sigmoids_of_old_classes(fits):
    teacher, network, _, objective = second_phase("icarl-bce", fits)
    assert objective.teacher is teacher
    assert objective.n_old == 3
    assert network is not teacher


def test_ewc_looks_at_new_scores_unless_told_otherwise(fits):
    assert second_phase("ewc", fits)[-1].n_old == 3
    assert second_phase("ewc", fits, ewc_new_only=False)[-1].n_old == 0


def test_ewc_anchors_the_weights_before_and_merges_what_mattered(fits):
    base, phase = make_phases((3, 2))
    method = resolve("ewc")(make_context(settings={"ewc_clip": 10.0}))
    method.learn(base)
    first, before = method.fisher, method.network
    method.learn(phase)
    network, _, objective = fits[-1]
    assert all(torch.equal(a, p) for a, p in zip(objective.anchors, before.parameters(), strict=True))
    assert objective.fisher is first
    found = fisher_information(
        network,
        phase.images.pixels(),
        phase.labels,
        network.backbone.preprocessing,
        method.training.batch_size,
        10.0,
        torch.device("cpu"),
    )
    for own, expected in zip(method.fisher, merged(first, found, 3 / 5), strict=True):
        torch.testing.assert_close(own, expected)
