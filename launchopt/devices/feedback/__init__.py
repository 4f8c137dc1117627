"""Feedback: turn the outputs of a step into the inputs of the request's next step."""
