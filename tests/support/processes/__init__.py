"""Runs in processes of their own, with limits, mounts and faults."""
