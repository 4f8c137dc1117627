"""The probability that a check of a random sample finds a fault."""


def chance_to_find(wrong: int, commands: int, checked: int) -> float:
    """Return the probability that at least one of `wrong` commands is among the `checked` ones, of `commands`."""
    missed = 1.0
    for already in range(min(wrong, commands)):
        missed *= max(0, commands - checked - already) / (commands - already)
    return 1.0 - missed
