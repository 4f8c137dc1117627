"""Rigs and fakes for the persistent kernel."""
