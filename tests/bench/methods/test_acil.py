"""ACIL as a method of the benchmark; its mathematics is tested with the classifier."""

import torch

from acil.bench.methods import resolve
from acil.core.classifier import ACILClassifier
from support.frozen_phases import gaussians, learnt, phase, phases, vectors

#: Scores agree up to ε·κ; κ is below 1e6 here.
TOLERANCE = 1e-9
COMPARE = resolve("acil").compare_with_joint


def test_comparison_with_joint_learning_is_not_zero_by_construction():
    """One phase is joint learning itself: only the other order of rows can differ."""
    features, labels = gaussians(per_class=60)
    everything = vectors(features)
    for groups in ([tuple(range(6))], [(0, 1, 2), (3,), (4, 5)]):
        learner = learnt("acil", phases(features, labels, groups))
        report = COMPARE(learner, everything, labels, everything)
        assert 0 < report["joint_difference"] < TOLERANCE


def test_comparison_with_joint_learning_sees_a_difference():
    """Half of the rows learnt and all of them compared: far beyond rounding."""
    features, labels = gaussians(per_class=60)
    half = learnt("acil", [phase(features[::2], labels[::2])])
    report = COMPARE(half, vectors(features), labels, vectors(features))
    joint = ACILClassifier(**({"scores": "ridge"} | half.classifier.get_params())).fit(features, labels)
    expected = joint.decision_function(features)
    found = half.classifier.decision_function(features)
    difference = float(torch.linalg.norm(found - expected) / torch.linalg.norm(expected))
    assert difference > 1e-3
    assert abs(report["joint_difference"] - difference) < TOLERANCE
