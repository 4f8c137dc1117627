"""Check streams of requests: their tokens, and the commands of steps, against the whole model in float64."""
