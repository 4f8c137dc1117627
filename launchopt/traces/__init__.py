"""Readers of traces that other tools recorded (Kineto and Chrome JSON, SQLite files of nsys), and of lists of GEMMs."""
