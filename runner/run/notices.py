"""Notices that follow from the repeats of a run: what was checked by sample, and what was launched otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from launchopt.modes import mode_class
from launchopt.modes.stack import choices_of, stack_of
from launchopt.recording import results
from launchopt.recording.manifest import Manifest
from launchopt.stack import LOOPS
from launchopt.verify.chance import chance_to_find

CHECKS, AUDITS = "checks of outputs", "audit runs"  # phases of a run
LONG_CHECKS_S = 20.0
SHORT_CHECK_S = 1.0  # seconds for each check that are proposed then


def sampled_check(rows: Sequence[results.Row]) -> list[str]:
    """Return a notice if only a sample of the independent commands was checked."""
    sampled = [row for row in rows if (row["checked_commands"] or row["commands"]) < row["commands"]]
    if not sampled:
        return []
    row = min(sampled, key=lambda row: row["checked_commands"])
    commands, checked = row["commands"], row["checked_commands"]
    found = chance_to_find(max(1, commands // 10_000), commands, checked)
    return [
        f"{checked:,} of {commands:,} commands were checked, at random, in the time allowed (verify_budget_s);"
        f" if one of 10,000 is wrong, that is found with a probability of {found:.3g}; verify=full checks all"
    ]


def audited_check(rows: Sequence[results.Row], is_full: bool) -> list[str]:
    """Return a notice if only a part of the layers of steps was compared. is_full: with verify=full."""
    share = min((row["audited_share"] for row in rows if row["audited_share"] is not None), default=1.0)
    if share >= 1.0:
        return []
    if is_full:
        return [
            f"an untimed run compared {share:.1%} of all layers of all steps: every layer of the decode steps of the"
            " requests that it had, and the last layer of each chunk of their prompts (verify=full)"
        ]
    many = 1 - (1 - share) ** 20
    likely = f"{many:.3g}" if many < 0.9995 else "over 0.999"
    return [
        f"an untimed run compared {share:.1%} of all layers of all steps, chosen at random: it finds a fault in one"
        f" layer with a probability of {share:.3g}, in 20 layers {likely}; verify=full compares all"
    ]


def long_checks(seconds: Mapping[str, float], has_steps: bool, budget_s: float | None = None) -> list[str]:
    """Return a notice if checks that have a budget took most of the seconds of a long run.

    seconds: by phase. has_steps: of requests only audit runs have a budget, since every token of a repeat is compared.
    budget_s: verify_budget_s.
    """
    phase = AUDITS if has_steps else CHECKS
    total_s, checks_s = sum(seconds.values()), seconds.get(phase, 0.0)
    if checks_s < LONG_CHECKS_S or 2 * checks_s < total_s:
        return []
    now = "as long as its run, at least 5 s"
    if budget_s is not None:
        now = "until all is checked" if math.isinf(budget_s) else f"{budget_s:g} s"
    less = f"{min(SHORT_CHECK_S, (budget_s or math.inf) / 2):g}"
    return [f"{phase} took {checks_s:.0f} of {total_s:.0f} s, each {now}; verify_budget_s={less} checks less in each"]


def own_strategy_of(label: str) -> str:
    """Return the strategy of an arm's own launches, from its label; "" if it has no strategy of its own."""
    return mode_class(*choices_of(label)).own_strategy


def left_out_lines(runs: Iterable[Manifest]) -> list[str]:
    """Return a line for each arm, and reason, that some rows are not launched as the arm's stack asks.

    `runs` are the manifest's entries of repeats: mode, and the fields of each `streams.chains.groups.LeftOut`.
    """
    found: dict[tuple[str, str], dict[str, None]] = {}
    for run in runs:
        for each in run.get("left_out", ()):
            text = f"{each['rows']} ({each['launches']} of {each['of']})"
            found.setdefault((run["mode"], each["reason"]), {})[text] = None
    return [
        f"{mode}: not launched as its stack asks, in each step: {', '.join(texts)}: {reason}"
        for (mode, reason), texts in found.items()
    ]


def unfused_lines(runs: Iterable[Manifest]) -> list[str]:
    """Return a line for each arm that launched some commands of fused launches one by one: of the repeat with most."""
    most: dict[str, tuple[int, int]] = {}
    for run in runs:
        found = run.get("unfused_commands", 0), sum(run["commands_by_strategy"].values())
        most[run["mode"]] = max(most.get(run["mode"], found), found)
    why = "the operands of their requests are not evenly spaced in memory"
    return [
        f"{mode}: {unfused:,} of {commands:,} commands were launched without their fusions: {why}"
        for mode, (unfused, commands) in most.items()
        if unfused
    ]


def forwarded_lines(runs: Iterable[Manifest]) -> list[str]:
    """Return a line for each mode that did not launch every command by its own strategy.

    `megakernel: 32 of 640 commands were launched otherwise: strided 32` counts the repeat with the most such commands.
    `runs` are the manifest's entries of repeats: mode, and the number of commands of each `launch_rows.Strategy`.
    """
    most: dict[str, tuple[int, int, str]] = {}
    for run in runs:
        own, by = own_strategy_of(run["mode"]), run["commands_by_strategy"]
        if not own:
            continue
        others = {name: count for name, count in by.items() if name != own}
        listed = ", ".join(f"{name} {count:,}" for name, count in others.items())
        found = sum(others.values()), sum(by.values()), listed
        most[run["mode"]] = max(most.get(run["mode"], found), found)
    return [
        f"{mode}: {others:,} of {commands:,} commands were launched otherwise: {listed}"
        for mode, (others, commands, listed) in most.items()
        if others
    ]


def split_loops(rows: Sequence[results.Row]) -> list[str]:
    """Return a line for each mode of many tokens a launch whose batches mostly left before all requests had come.

    The commands of many tokens take longer to come than a deadline for those of one.
    """
    worst: dict[str, results.Row] = {}
    for row in rows:
        is_loop = stack_of(*choices_of(row["mode"])).submit in LOOPS
        if is_loop and (row["requests"] or 1) > 1 and 2 * row["flush_deadline"] >= row["batches"]:
            kept = worst.setdefault(row["mode"], row)
            worst[row["mode"]] = max(kept, row, key=lambda each: each["flush_deadline"])
    return [
        f"{mode}: {row['flush_deadline']:,} of {row['batches']:,} batches left at their deadline, before the steps of"
        f" all {row['requests']:,} requests had come: with a batching.timeout_us above {row['timeout_us']:g} they would"
        " share launches"
        for mode, row in worst.items()
    ]
