"""Compare methods on features of your own from Python: scikit-learn's digits stand for embeddings.

`acil.bench.run` takes the flags of `acil bench run` and returns its records.
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import acil.bench

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, stratify=y, random_state=0)

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "digits.npz"
    np.savez(file, X_train=X_train, y_train=y_train, X_test=X_test, y_test=y_test)
    # Ten classes in five steps, from zero: there is no base phase.
    records = acil.bench.run(
        dataset=f"features:{file}",
        method=["acil", "ncm", "lda"],
        base=0,
        phases=5,
        seeds=[0, 1],
        expansion_size=1000,
    )

print("method  seed  average  last")
for record in records:
    if record["kind"] == "summary":
        average, last = record["average_accuracy"], record["last_accuracy"]
        print(f"{record['method']:6}  {record['seed']:4}  {average:6.2f}%  {last:5.2f}%")
