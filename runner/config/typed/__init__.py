"""The words that a user typed: checks before Hydra reads them, and what a misspelt one may stand for."""
