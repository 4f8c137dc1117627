"""The number of GEMMs of a step, and of steps of a request, for model=tiny."""

from __future__ import annotations

GEMMS = 8  # per step: four in each of two layers


def steps_of(prompt: int, tokens: int, chunk: int | None = None) -> int:
    """Return the steps of a request whose prompt comes whole, or in chunks of `chunk` tokens."""
    prompt_steps = -(-prompt // (chunk or prompt)) if prompt else 0
    return prompt_steps + max(1, tokens) - (prompt > 0)
