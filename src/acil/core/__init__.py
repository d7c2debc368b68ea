"""The learner and its files: tensors, sums and a ridge regression behind a scikit-learn face."""
