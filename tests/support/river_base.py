"""What stands for the package river."""


class Classifier:
    """Stands for river.base.Classifier, of which only `predict_one` does something."""

    def predict_one(self, x, **options):
        found = self.predict_proba_one(x, **options)
        return max(found, key=found.get) if found else None
