"""Readers of traces that other tools recorded: Kineto and Chrome JSON, and SQLite files of nsys."""
