"""Traces that other tools recorded: Kineto and Chrome JSON, nsys SQLite."""
