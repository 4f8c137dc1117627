"""Rigs and stand-ins for the persistent kernel."""
