"""The training loop on problems of seconds."""

import dataclasses

import pytest
import torch
from torch import nn

from acil.bench.training.loop import DivergedError
from acil.bench.training.objectives import CrossEntropy, Objective
from acil.bench.training.settings import Training
from acil.encoders.images.backbones import normalise
from acil.errors import InputError
from support.small_training import PREPROCESSING, SHORT, fit, make_network, problem, same_state


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_learns_separable_images(precision):
    images, labels = problem(300)
    settings = Training(
        epochs=6, batch_size=32, learning_rate=0.1, schedule="cosine", warmup=1, precision=precision
    )
    network = fit(make_network(), images, labels, settings)
    test_images, test_labels = problem(200, seed=1)
    assert not network.training
    with torch.no_grad():
        predicted = network(normalise(test_images, PREPROCESSING)).argmax(1)
    assert (predicted == test_labels).float().mean() > 0.95


def test_same_seed_gives_the_same_bits_and_another_seed_others():
    images, labels = problem()
    settings = dataclasses.replace(SHORT, augment=("crop", "flip", "trivialaugment"))
    first = fit(make_network(), images, labels, settings)
    torch.rand(5)
    assert same_state(first, fit(make_network(), images, labels, settings))
    assert not same_state(first, fit(make_network(), images, labels, settings, seed=1))


def test_training_leaves_the_global_generator_and_the_data_alone():
    images, labels = problem()
    copies = images.clone(), labels.clone()
    state = torch.get_rng_state()
    fit(make_network(), images, labels, dataclasses.replace(SHORT, augment=("crop", "flip", "jitter")))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(images, copies[0])
    assert torch.equal(labels, copies[1])


@pytest.mark.parametrize("decay_all", [True, False])
@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_equal_those_of_torch_sgd_with_label_smoothing(nesterov, decay_all):
    images, labels = problem(16)
    options = {"weight_decay": 0.1, "nesterov": nesterov}
    settings = Training(2, 16, 0.3, decay_all=decay_all, label_smoothing=0.2, **options)
    ours = fit(make_network(), images, labels, settings)
    reference = make_network().train()
    matrices = [own for own in reference.parameters() if own.ndim > 1]
    vectors = {"params": [own for own in reference.parameters() if own.ndim == 1]}
    if not decay_all:
        vectors["weight_decay"] = 0.0
    optimizer = torch.optim.SGD([{"params": matrices}, vectors], lr=0.3, momentum=0.9, **options)
    x = normalise(images, PREPROCESSING)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(reference(x), labels, label_smoothing=0.2).backward()
        optimizer.step()
    # Orders within the batch and layouts differ, so sums are rounded differently.
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_every_image_is_seen_once_an_epoch_in_a_new_order():
    images, labels = problem(70)
    seen = []

    def objective(network, x, y, indices):
        assert torch.equal(y, labels[indices])
        assert torch.equal(x, normalise(images[indices], PREPROCESSING))
        seen.append(indices.tolist())
        return nn.functional.cross_entropy(network(x), y)

    fit(make_network(), images, labels, dataclasses.replace(SHORT, epochs=2), objective=objective)
    epochs = [[i for batch in batches for i in batch] for batches in (seen[:5], seen[5:])]
    assert [len(batch) for batch in seen[:5]] == [16, 16, 16, 16, 6]
    assert all(sorted(epoch) == list(range(70)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    seen.clear()
    short = dataclasses.replace(SHORT, epochs=1, keep_last_batch=False)
    fit(make_network(), images, labels, short, objective=objective)
    assert [len(batch) for batch in seen] == [16, 16, 16, 16]


def test_chunks_do_not_change_which_images_make_a_batch(monkeypatch):
    first = fit(make_network(), *problem(), SHORT)
    monkeypatch.setattr("acil.bench.training.loop._CHUNK_BYTES", 1)
    assert same_state(first, fit(make_network(), *problem(), SHORT))


def test_rate_follows_the_schedule():
    network = nn.Linear(1, 1)
    nn.init.zeros_(network.weight)
    settings = Training(4, 16, 0.4, milestones=(3,), warmup=2, momentum=0, weight_decay=0)

    def objective(network, x, y, indices):
        return network.weight.sum()  # its gradient is 1, so that each step subtracts the rate

    labels = torch.zeros(32, dtype=torch.int64)
    fit(network, torch.ones(32, 1), labels, settings, preprocessing=None, objective=objective)
    assert network.weight.item() == pytest.approx(-2 * (0.2 + 0.4 + 0.4 + 0.04), rel=1e-6)


def test_frozen_parameters_stay():
    images, labels = problem()
    network = make_network()
    network.backbone.requires_grad_(False)
    fit(network, images, labels, SHORT)
    fresh = make_network()
    for (name, ours), theirs in zip(network.named_parameters(), fresh.parameters(), strict=True):
        assert torch.equal(ours, theirs) == name.startswith("backbone")
    network.requires_grad_(False)
    with pytest.raises(InputError, match="trainable"):
        fit(network, images, labels, SHORT)


def test_features_are_used_as_they_are():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (100,), generator=generator)
    features = torch.randn(100, 5, generator=generator) + 3 * labels[:, None]
    network = nn.Linear(5, 2)
    nn.init.zeros_(network.weight)
    settings = dataclasses.replace(SHORT, epochs=10)
    fit(network, features, labels, settings, preprocessing=None)
    assert (network(features).argmax(1) == labels).float().mean() > 0.95
    with pytest.raises(InputError, match="without augmentation"):
        fit(network, features, labels, dataclasses.replace(SHORT, augment=("flip",)))


@pytest.mark.parametrize("n", [1, 3])
def test_fewer_images_than_a_batch_make_one_step(n):
    settings = dataclasses.replace(SHORT, keep_last_batch=False)
    assert not same_state(fit(make_network(), *problem(n), settings), make_network())


def test_no_epoch_leaves_the_weights():
    network = make_network().train().requires_grad_(False)
    assert same_state(fit(network, *problem(), Training(epochs=0)), make_network())
    assert not network.training


def test_progress_ends_with_the_last_epoch(monkeypatch):
    monkeypatch.setattr("acil.bench.training.loop.REPORT_SECONDS", 0.0)
    images, labels = problem()
    reports = []
    fit(make_network(), images, labels, SHORT, progress=reports.append)
    assert len(reports) == 3 * 10 + 1
    assert [report.epoch for report in reports[::10]] == [1, 2, 3, 3]
    assert all(report.epochs == 3 for report in reports)
    assert reports[-1].accuracy > reports[0].accuracy
    assert 0 < reports[-1].loss < reports[0].loss
    assert reports[0].seconds_left > 0
    assert reports[-1].seconds_left == 0
    assert all(report.images_per_second > 0 for report in reports)
    # Only the last one where none is due.
    monkeypatch.setattr("acil.bench.training.loop.REPORT_SECONDS", 1e9)
    fit(make_network(), images, labels, SHORT, progress=reports.append)
    assert len(reports) == 3 * 10 + 2


def test_accuracy_is_unknown_without_scores():
    reports, loss = [], lambda *batch: CrossEntropy()(*batch)[0]
    fit(make_network(), *problem(), SHORT, objective=loss, progress=reports.append)
    assert reports[-1].accuracy is None


def test_diverging_training_is_an_error_that_says_where():
    def objective(network, x, y, indices):
        return network(x).sum() * float("nan")

    with pytest.raises(DivergedError, match="epoch 1 of 3"):
        fit(make_network(), *problem(), SHORT, objective=objective)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, y: (i, y.int()), "int64"),
        (lambda i, y: (i, y[:-1]), "for 150 images"),
        (lambda i, y: (i[:0], y[:0]), "at least one image"),
        (lambda i, y: (i[:, 0], y), r"shape \(n, c, h, w\)"),
        (lambda i, y: (i.double(), y), "uint8"),
        (lambda i, y: (i, y + 1), "3 outputs"),
        (lambda i, y: (i, y - 1), "from -1"),
    ],
)
def test_bad_data_are_refused_and_the_network_stays(change, message):
    images, labels = change(*problem())
    network = make_network()
    with pytest.raises(InputError, match=message):
        fit(network, images, labels, SHORT)
    assert same_state(network, make_network())


@pytest.mark.parametrize(("limit", "moved"), [(None, 0.3), (1e-3, 1e-4)])
def test_gradients_are_clamped_entry_by_entry(limit, moved):
    class Steep(Objective):
        gradient_limit = limit

        def __call__(self, network, x, y, indices):
            return 3 * network.weight.sum()

    network = nn.Linear(2, 1, bias=False)
    before = network.weight.detach().clone()
    plan = Training(epochs=1, batch_size=4, learning_rate=0.1, weight_decay=0.0)
    labels = torch.zeros(4, dtype=torch.int64)
    fit(network, torch.zeros(4, 2), labels, plan, preprocessing=None, objective=Steep())
    torch.testing.assert_close(before - network.weight.detach(), torch.full((1, 2), moved))
