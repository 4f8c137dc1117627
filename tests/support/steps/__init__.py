"""Streams, whole steps and their models."""
