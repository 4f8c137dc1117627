"""Check the outputs of a run against a computation in float64."""
