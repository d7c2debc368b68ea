"""Long-tailed and Si-Blurry runs: which samples come when, what is measured, how a run goes on."""

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier

from acil import ACILClassifier
from acil.bench import protocols
from acil.bench.config import make_config
from acil.bench.datasets import Dataset, load, restrict
from acil.bench.methods import resolve
from acil.bench.orders import class_order
from acil.bench.prepare import prepare
from acil.bench.protocols import PROTOCOLS, drop_from_best, si_blurry, tail_sizes
from acil.bench.report import write_report
from acil.bench.runner import run
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError
from support.running import records, timeless, write_features

#: Between two ways to the same scores, relative: rounding.
ROUNDING = 1e-9


def dataset(counts, d=3):
    """Vectors that say which row they are; all classes have two test samples."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    rows = torch.arange(len(labels), dtype=torch.float32).unsqueeze(1).expand(-1, d).contiguous()
    tested = torch.arange(len(counts)).repeat_interleave(2)
    test = ImageSet(None, torch.zeros(len(tested), d))
    names = tuple(f"class {label}" for label in range(len(counts)))
    return Dataset("made", ImageSet(None, rows), labels, test, tested, names, "features", 0)


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """A file of features: 10 classes, 150 training and 4 test samples each."""
    path = tmp_path_factory.mktemp("features") / "features.npz"
    write_features(path, classes=10, each=(150, 4), noise=2.0)
    return path


def settings(features, protocol, **changes):
    values = {"dataset": f"features:{features}", "expansion_size": 24, "gamma": 1.0, "seeds": "0"}
    return make_config({**values, "protocol": protocol, **changes})


# Long tail


def test_a_long_tail_has_the_published_numbers_of_samples():
    sizes = tail_sizes(500, 100)
    assert sizes == [int(500 * 0.01 ** (c / 99.0)) for c in range(100)]
    assert (sum(sizes), sizes[0], sizes[-1]) == (10847, 500, 5)
    assert tail_sizes(30, 4) == [30, 6, 1, 1]
    assert tail_sizes(7, 1) == [7]


def test_the_class_decides_how_many_samples_it_keeps_whatever_the_order():
    whole = dataset([40] * 5)
    tail = PROTOCOLS["long-tailed"].training_data(whole)
    counts = torch.bincount(tail.train_labels).tolist()
    assert counts == tail_sizes(40, 5) == [40, 12, 4, 1, 1]
    shuffled = restrict(tail, class_order("seed1993", 5))
    names = dict(zip(shuffled.class_names, torch.bincount(shuffled.train_labels).tolist(), strict=True))
    assert names == dict(zip(whole.class_names, counts, strict=True))
    # Each sample at most once, with its own label, the same ones each time; all test samples stay.
    kept = tail.train.features(None)[:, 0].long()
    assert len(kept.unique()) == len(kept)
    assert torch.equal(whole.train_labels[kept], tail.train_labels)
    again = PROTOCOLS["long-tailed"].training_data(whole).train.features(None)[:, 0].long()
    assert torch.equal(kept, again)
    assert len(tail.test) == len(whole.test)


def test_a_class_with_fewer_samples_than_its_place_gives_keeps_them_all():
    tail = PROTOCOLS["long-tailed"].training_data(dataset([200, 3, 200]))
    assert torch.bincount(tail.train_labels).tolist() == [200, 3, 2]


def test_a_long_tailed_run_tells_many_medium_and_few_apart(features, tmp_path):
    run(settings(features, "long-tailed", method="ncm", order="seed1993", phases="1,5"), tmp_path)
    sizes = dict(zip(map(str, range(10)), tail_sizes(150, 10), strict=True))
    kind = {c: "many" if n > 100 else "few" if n <= 20 else "medium" for c, n in sizes.items()}
    assert Counter(kind.values()) == {"many": 1, "medium": 3, "few": 6}
    order = [str(c) for c in class_order("seed1993", 10)]
    phases = records(tmp_path, "phase")
    for record in phases:
        shares = [(record[f"accuracy_{k}"], k) for k in ("many", "medium", "few")]
        seen = Counter(kind[name] for name in order[: record["classes_seen"]])
        assert {k for share, k in shares if share is not None} == set(seen)
        # Test samples are balanced: the accuracy of all is the mean over classes.
        parts = sum(share * seen[k] for share, k in shares if share is not None)
        assert record["accuracy"] == pytest.approx(parts / record["classes_seen"])
    for summary in records(tmp_path, "summary"):
        last = [r for r in phases if r["phases"] == summary["phases"]][-1]
        assert summary["accuracy_few"] == last["accuracy_few"]
    assert {r["settings"]["protocol"] for r in phases} == {"long-tailed"}


def test_pooled_balance_follows_exact_weights_on_a_long_tail(features):
    tail = PROTOCOLS["long-tailed"].training_data(load(f"features:{features}"))
    X, y = tail.train.features(None).double(), tail.train_labels
    test, truth = tail.test.features(None).double(), tail.test_labels.numpy()
    gamma, counts = 1.0, torch.bincount(y).double()
    # A foreign reference: γ at the scale of weights n / (C n_k)
    alpha = gamma * len(y) * float((1 / counts).mean()) / len(counts)
    exact = RidgeClassifier(alpha=alpha, class_weight="balanced", fit_intercept=False).fit(X, y)
    found = {}
    for balance in (0.0, 1.0):
        model = ACILClassifier(expansion_size=None, gamma=gamma, scores="ridge", class_balance=balance)
        found[balance] = 100 * float(np.mean(model.fit(X, y).predict(test).numpy() == truth))
    assert found[1.0] == pytest.approx(100 * exact.score(test, truth), abs=5)  # two of 40 test samples
    assert found[1.0] >= found[0.0] + 10


# Si-Blurry


def tasks_by_hand(labels, n_classes, n_tasks, seed):
    """The published steps, one sample after the other."""
    generator = torch.Generator().manual_seed(seed)
    n_disjoint = n_classes // 2 // n_tasks * n_tasks
    n_blurry = (n_classes - n_disjoint) // n_tasks * n_tasks
    order = torch.randperm(n_classes, generator=generator).tolist()

    def groups(items):
        if not items:
            return [[] for _ in range(n_tasks)]
        cuts = sorted(torch.randint(0, len(items), (n_tasks - 1,), generator=generator).tolist())
        edges = [0, *cuts, len(items)]
        return [items[edges[i] : edges[i + 1]] for i in range(n_tasks)]

    disjoint = groups(order[:n_disjoint])
    blurry = groups(order[n_disjoint : n_disjoint + n_blurry])
    own = [[i for i, label in enumerate(labels) if label in classes] for classes in disjoint]
    shared = [[i for i, label in enumerate(labels) if label in classes] for classes in blurry]
    slices = groups(list(range(sum(map(len, shared)) // 10)))
    short = any(len(part) > len(mine) for part, mine in zip(slices, shared, strict=True))
    pool = []
    for task, part in enumerate(slices):
        pool += shared[task][: len(part)]
        shared[task] = shared[task][len(part) :]
    if sum(map(len, slices)):
        pool = [pool[i] for i in torch.randperm(len(pool), generator=generator).tolist()]
    tasks = []
    for task, part in enumerate(slices):
        together = own[task] + shared[task] + pool[: len(part)]
        pool = pool[len(part) :]
        tasks.append([together[i] for i in torch.randperm(len(together), generator=generator).tolist()])
    return tasks, disjoint, blurry, short


@pytest.mark.parametrize(
    ("n_classes", "n_tasks", "per_class"),
    [(100, 5, 20), (13, 5, 30), (10, 3, 7), (8, 5, 10), (6, 6, 3), (4, 1, 9), (7, 2, 1)],
)
def test_a_stream_is_split_as_in_the_published_code(n_classes, n_tasks, per_class):
    for seed in range(8):
        mixing = torch.randperm(
            n_classes * per_class, generator=torch.Generator().manual_seed(seed + 99)
        )
        labels = torch.arange(n_classes).repeat_interleave(per_class)[mixing]
        found = [task.tolist() for task in si_blurry(labels, n_classes, n_tasks, seed)]
        expected, disjoint, blurry, _ = tasks_by_hand(labels.tolist(), n_classes, n_tasks, seed)
        assert found == expected
        shown = [i for task in found for i in task]
        kept = {c for group in (*disjoint, *blurry) for c in group}
        # Each sample of a class that is kept comes once; what is left over of classes never comes.
        assert sorted(shown) == [i for i, label in enumerate(labels.tolist()) if label in kept]
        assert n_classes - len(kept) == (n_classes - n_classes // 2 // n_tasks * n_tasks) % n_tasks
        for task, classes in zip(found, disjoint, strict=True):
            others = [i for other in found if other is not task for i in other]
            assert not {labels[i].item() for i in others} & set(classes)


def test_tasks_keep_their_size_when_samples_move():
    labels = torch.arange(20).repeat(50)
    kept = []
    for seed in range(12):
        _, disjoint, blurry, short = tasks_by_hand(labels.tolist(), 20, 4, seed)
        sizes = [50 * (len(own) + len(shared)) for own, shared in zip(disjoint, blurry, strict=True)]
        found = si_blurry(labels, 20, 4, seed)
        # Unless a task had fewer samples to give than it should
        kept.append(not short)
        assert short or [len(task) for task in found] == sizes
        # Samples did move: a blurry class is in more tasks than one.
        assert max(sum(c in labels[task] for task in found) for group in blurry for c in group) > 1
    assert {True, False} == set(kept)


def test_empty_tasks_are_left_out_and_left_over_classes_never_come():
    data = dataset([3] * 7)
    seed = next(s for s in range(200) if not all(map(len, si_blurry(data.train_labels, 7, 4, s))))
    split = si_blurry(data.train_labels, 7, 4, seed)
    blurry = PROTOCOLS["si-blurry"]
    assert [t.tolist() for t in blurry.split(data, 4, seed)] == [t.tolist() for t in split if len(t)]
    grouping = blurry.grouping(data, 4, seed)
    shown = [c for classes in grouping for c in classes]
    assert len(shown) == len(set(shown)) == 4
    with pytest.raises(InputError, match="from 1 to 7"):
        si_blurry(data.train_labels, 7, 8, 0)


def test_forgetting_of_a_stream_by_hand():
    assert drop_from_best([[50.0, None, 0.0], [40.0, 80.0, 0.0], [45.0, 90.0, 30.0]]) == -2.5
    assert drop_from_best([[50.0, 20.0]]) is None


@pytest.fixture(scope="module")
def stream(features, tmp_path_factory):
    """A run of all methods that can take part, tested every 100 samples."""
    folder = tmp_path_factory.mktemp("stream") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocols, "TESTED_EVERY", 100)
        run(settings(features, "si-blurry", method="acil,ncm,slda,ds-al", seeds="0,1", phases=3), folder)
    return folder


def test_a_stream_is_tested_on_its_way_and_at_the_end_of_tasks(stream, features):
    prepared = prepare(settings(features, "si-blurry", phases=3))
    for seed in (0, 1):
        tasks = si_blurry(prepared.data.train_labels, 10, 3, seed)
        found = [r for r in records(stream, "phase") if (r["method"], r["seed"]) == ("acil", seed)]
        ends = np.cumsum([len(task) for task in tasks if len(task)])
        assert len(found) == len(ends)
        tested = [samples for record in found for samples, _ in record["tests"]]
        assert tested == list(range(100, ends[-1] + 1, 100))
        for record in found:
            exposed = [share for share in record["accuracy_by_class"] if share is not None]
            assert len(exposed) == record["classes_seen"]
            assert record["accuracy"] == pytest.approx(np.mean(exposed))
        (summary,) = [
            r for r in records(stream, "summary") if (r["method"], r["seed"]) == ("acil", seed)
        ]
        shares = [share for record in found for _, share in record["tests"]]
        assert summary["anytime_accuracy"] == pytest.approx(np.mean(shares))
        assert summary["average_accuracy"] == pytest.approx(np.mean([r["accuracy"] for r in found]))
        never = {*map(str, range(10))} - {
            str(c) for t in tasks for c in prepared.data.train_labels[t].tolist()
        }
        assert set(summary["never_shown"]) == never
        assert len(never) == 1


def test_the_last_accuracy_of_acil_is_that_of_learning_all_at_once(stream, features):
    data = prepare(settings(features, "si-blurry", phases=3)).data
    for summary in (r for r in records(stream, "summary") if r["method"] == "acil"):
        rows = torch.cat(si_blurry(data.train_labels, 10, 3, summary["seed"]))
        joint = ACILClassifier(
            expansion_size=24, gamma=1.0, scores="ridge", random_state=summary["seed"]
        )
        joint.fit(data.train.features(None)[rows], data.train_labels[rows])
        tested = torch.isin(data.test_labels, data.train_labels[rows])
        right = joint.predict(data.test.features(None)[tested]) == data.test_labels[tested]
        assert summary["last_accuracy"] == 100.0 * int(right.sum()) / len(right)
        assert summary["joint_difference"] <= ROUNDING


def test_all_methods_of_a_seed_see_the_same_stream(stream):
    by_seed = {}
    for record in records(stream, "phase"):
        what = (record["classes_seen"], [samples for samples, _ in record["tests"]])
        by_seed.setdefault((record["seed"], record["phase"]), []).append(what)
    assert {r["method"] for r in records(stream, "phase")} == {"acil", "ncm", "slda"}
    assert all(what == found[0] for found in by_seed.values() for what in found)
    assert by_seed[0, 0] != by_seed[1, 0]


def test_methods_that_cannot_learn_a_class_again_are_refused_before_the_run(features, tmp_path):
    with pytest.raises(InputError, match=r"ds-al, fetril .*come back"):
        run(settings(features, "si-blurry", method="ds-al,fetril"), tmp_path / "run")
    assert not (tmp_path / "run" / "records.jsonl").exists()
    assert resolve("slda").classes_return
    assert not resolve("finetune").classes_return


def test_images_need_a_network_that_is_trained(tmp_path):
    with pytest.raises(InputError, match="base phase"):
        run(make_config({"dataset": "digits", "protocol": "si-blurry"}), tmp_path)


def test_the_classes_of_the_network_are_no_part_of_the_stream(features):
    prepared = prepare(settings(features, "si-blurry", base=4))
    assert prepared.data.class_names == tuple("456789")
    assert prepared.plan()[0].covers[5]
    with pytest.raises(InputError, match="no class"):
        prepare(settings(features, "si-blurry", base=10))


@pytest.mark.parametrize("protocol", ["long-tailed", "si-blurry"])
def test_an_interrupted_run_goes_on_to_the_same_records(protocol, features, tmp_path, monkeypatch):
    monkeypatch.setattr("acil.bench.job.STATE_SECONDS", 0.0)
    config = settings(features, protocol, phases=3)
    run(config, tmp_path / "whole")

    def stop(event):
        if event.phase == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "stopped", progress=stop)
    assert list((tmp_path / "stopped").rglob("state-*"))
    run(config, tmp_path / "stopped", resume=True)
    assert timeless(tmp_path / "stopped") == timeless(tmp_path / "whole")
    with pytest.raises(InputError, match="protocol = "):
        run(settings(features, "class-incremental", phases=3), tmp_path / "whole", resume=True)


def test_the_usual_protocol_leaves_no_trace_in_identities(features):
    usual = prepare(settings(features, "class-incremental"))
    tailed = prepare(settings(features, "long-tailed"))
    (job, *_), (other, *_) = usual.plan(), tailed.plan()
    assert "protocol" not in usual.labels(job, 5)["settings"]
    assert "protocol" not in usual.base_identity(0)
    assert tailed.labels(other, 5)["settings"]["protocol"] == "long-tailed"
    assert tailed.base_identity(0) == {**usual.base_identity(0), "protocol": "long-tailed"}


def test_reports_have_tables_for_both(stream, features, tmp_path):
    run(settings(features, "long-tailed", method="acil,ncm", phases=2, seeds="0,1,2"), tmp_path / "tail")
    report = write_report([stream, tmp_path / "tail"], tmp_path / "report", plots=False)
    page = (tmp_path / "report" / "report.md").read_text()
    for text in (
        "## Long tail",
        "A_K, few (%)",
        "## Si-Blurry",
        "A_AUC (%)",
        "Never shown (K = 3, seed 0)",
    ):
        assert text in page
    assert "**Comparison" not in report.markdown
    assert "**Paired differences on" in page
    # Numbers of the paper are of another protocol; the command names this one.
    assert "Published" not in page
    assert "--protocol si-blurry" in page
    assert {"long-tailed.csv", "si-blurry.tex"} <= {path.name for path in report.files}
