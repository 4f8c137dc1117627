"""Reads results that any program may have made or damaged: names what cannot be used, and returns the rest."""
