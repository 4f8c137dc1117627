"""Waterfall: what each choice of a stack brings, in the order in which a run added them.

In: a waterfall. Out: a figure. Its bars lie between the times before and after each choice.
"""

from __future__ import annotations

from launchopt.analysis.waterfall.markdown import waterfall_sentence, waterfall_title
from launchopt.analysis.waterfall.plot import STEP, rows_of, waterfall_layers
from launchopt.analysis.waterfall.steps import Waterfall
from launchopt.report.figures.base import Figure, finished

TITLE = "What each choice brings"
READING = (
    "A bar lies between the mean wall times of a step (one token of every request) before and after a choice is added "
    "to the stack; the first and the last bar are times of modes. The text is the difference, "
    "paired repeat by repeat, and the whisker its 95% interval, around the time after the choice; fewer than 5 repeats "
    "have none. The differences add up to the whole."
)


def waterfall_figure(one: Waterfall) -> Figure:
    """Return the figure of one order."""
    title = f"{TITLE}: {waterfall_title(one)}"
    height = STEP * rows_of(one)
    return finished(title, waterfall_sentence(one), waterfall_layers(one), height, reading=READING, is_wide=True)
