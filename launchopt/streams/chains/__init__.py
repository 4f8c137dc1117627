"""Streams of requests: a model's program, the steps of each request, and their commands in order."""
