"""Learn scikit-learn's digits class by class, and measure that it equals learning them all at once.

The features are plain pixels (8 x 8, scaled to 0..1): there is no trained backbone in this example, so
it shows the closed-form head alone.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from acil import ACILClassifier

EXPANSION_SIZE = 1000
BASE_CLASSES = 5
#: 10·ε·κ with the κ that is printed below: what rounding may change in test scores (docs/guarantees.md).
TOLERANCE = 1e-9


def relative_difference(measured, expected):
    """Return ‖measured − expected‖ / ‖expected‖."""
    return np.linalg.norm(measured - expected) / np.linalg.norm(expected)


def make_classifier(solver, gamma):
    """Return an untrained classifier; all of them draw the same random expansion."""
    # Ridge scores are the paper's, and all that its recursion has.
    return ACILClassifier(EXPANSION_SIZE, gamma, solver=solver, scores="ridge", random_state=0)


X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X / 16, y, test_size=0.3, stratify=y, random_state=0)

# A base phase of five classes, then one new class a phase. Each phase sees its own classes only.
phases = [list(range(BASE_CLASSES)), *([label] for label in range(BASE_CLASSES, 10))]

# γ comes from the training data of the base phase alone, by generalized cross-validation.
in_base = np.isin(y_train, phases[0])
gamma = make_classifier("gram", 1.0).fit(X_train[in_base], y_train[in_base]).select_gamma()

print(f"Digits: {len(X_train)} images to learn, {len(X_test)} to test, γ = {gamma:.3g}\n")
print("phase  classes seen  accuracy, classes seen  accuracy, base classes")
models = {solver: make_classifier(solver, gamma) for solver in ("gram", "recursive")}
seen = []
for phase, new_classes in enumerate(phases):
    rows = np.isin(y_train, new_classes)
    for model in models.values():
        model.partial_fit(X_train[rows], y_train[rows])
    seen += new_classes
    of_seen, of_base = np.isin(y_test, seen), np.isin(y_test, phases[0])
    accuracy = models["gram"].score(X_test[of_seen], y_test[of_seen])
    base_accuracy = models["gram"].score(X_test[of_base], y_test[of_base])
    print(f"{phase:5}  {len(seen):12}  {accuracy:22.2%}  {base_accuracy:22.2%}")

# The same images again, all at once: what learning in phases has to equal.
joint = make_classifier("gram", gamma).fit(X_train, y_train)
joint_scores = joint.decision_function(X_test)
print(f"\nJoint learning of all classes: {joint.score(X_test, y_test):.2%}")
print(f"Relative difference between phases and joint, κ = {joint.condition_:.1e}:\n")
print("solver     test scores  weights")
differences = {}
for solver, model in models.items():
    differences[solver] = relative_difference(model.decision_function(X_test), joint_scores)
    weights = relative_difference(model.coef_, joint.coef_)
    print(f"{solver:9}  {differences[solver]:11.2e}  {weights:8.2e}")

# Forgetting a class leaves the model that never learnt it.
nines = y_train == 9
forgot = models["gram"].forget(X_train[nines], y_train[nines])
never = make_classifier("gram", gamma).fit(X_train[~nines], y_train[~nines])
forgetting = relative_difference(forgot.decision_function(X_test), never.decision_function(X_test))
print(
    f"\nAfter forgetting the nines: classes {', '.join(map(str, forgot.classes_))}; relative difference"
)
print(f"of test scores to a model that never learnt them: {forgetting:.1e}")

if max(differences["gram"], forgetting) > TOLERANCE:
    sys.exit(f"error: the difference should be below {TOLERANCE:.0e}")
