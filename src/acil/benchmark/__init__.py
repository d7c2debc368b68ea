"""From a data set to a finished comparison: protocols, data, runner, metrics, records and reports."""
