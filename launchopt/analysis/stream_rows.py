"""Names, order and groups of the streams of commands that rows of summary.parquet belong to.

In: rows as `results.read_summaries` gives them. Out: texts, sort keys and groups of rows. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launchopt.command import Dtype
from launchopt.errors import DataError
from launchopt.recording.results import Row
from launchopt.weights.packing import PLAIN, Packing, Scales, WeightFormat

DEPENDENCIES_IGNORED = "dependencies ignored"
OWN_FILES = ("list", "trace")  # workloads whose column `model` has the name of the file that was read
ORDER_VIOLATED = "order violated on purpose"

# Columns in which two rows of the same stream of commands on the same device agree.
STREAM = (
    *("workload", "model", "dtype", "weights", "device", "gpu", "layers", "commands", "cache", "arrival"),
    *("arrival_rate_per_s", "shapes", "requests", "scheduler", "sampling", "traced", "gpus", "tensor"),
    *("expert_routing", "experts", "experts_per_token", "step_tokens", "active_experts", "largest_expert_tokens"),
)
CONFIGURATION = ("mode", "ordering", "max_batch", "timeout_us", "run_id")
_FIRST_WORKLOADS = ("gemv_micro", "gemv_256", "decode", "prefill", "layer", "qkv")
_FIRST_DTYPES = ("fp32", "fp16", "bf16")


def stream_title(row: Row) -> str:
    """Return `gemv_micro fp32, 2,000,000 commands`, with the number of requests if they generate tokens.

    Quantised weights stand behind the dtype: `gemv_micro bf16, fp8 weights per channel, 2,000,000 commands`.
    """
    requests = "" if row["tokens"] is None else f" of {counted(row['requests'], 'request')}"
    traced = " (traced: not headline times)" if row["traced"] else ""
    return f"{row['workload']} {number_types(row)}, {counted(row['commands'], 'command')}{requests}{traced}"


def number_types(row: Row) -> str:
    """Return the types of a stream's numbers: `bf16`, or `bf16, fp8 weights per channel`."""
    stored = "" if row["weights"] is None else ", {} weights{}{}".format(*str(row["weights"]).partition(" "))
    return f"{row['dtype']}{stored}"


def weight_bytes(row: Row, m: int, k: int) -> int:
    """Return the bytes of a weight of k inputs and m outputs, stored as in the run, scales included."""
    form, _, scales = str(row["weights"] or "").partition(" per ")
    packing = Packing(WeightFormat(form), Scales(scales)) if form else PLAIN
    return packing.bytes(m, k, Dtype[str(row["dtype"])].itemsize)


def stream_subtitle(row: Row) -> str:
    """Return device, shapes and the other settings of a stream."""
    parts = [row["gpu"] or row["device"].upper(), *gpus_of(row), _shapes(row), *_settings(row)]
    return ", ".join(parts)


def stream_details(row: Row) -> list[str]:
    """Return what a subtitle says of a stream, the settings that tell streams apart most often first."""
    return [*_settings(row), *gpus_of(row), _shapes(row), row["gpu"] or row["device"].upper()]


def _shapes(row: Row) -> str:
    """Return `shapes 64x1x8192`, or `15 shapes`."""
    shapes = str(row["shapes"])
    return shapes if shapes.endswith("shapes") else f"shapes {shapes}"


def _settings(row: Row) -> list[str]:
    """Return the settings of a stream besides its title, shapes and GPUs."""
    parts: list[str] = []
    parts += [f"{row['model']} {row['workload'] if row['workload'] in OWN_FILES else 'model'}"] if row["model"] else []
    parts += [counted(row["layers"], "layer")] if row["layers"] is not None else []
    parts += routing_of(row)
    parts += [] if is_independent(row) or row["expert_routing"] else [counted(row["requests"], "request")]
    parts += [f"{row['cache']} cache", arrivals(row)]
    parts += [f"scheduler {row['scheduler']}"] if row["scheduler"] else []
    parts += [] if row["cached_tokens"] is None else [cached(row)]
    parts += [f"sampling {row['sampling']}"] if row["sampling"] else []
    return parts


def gpus_of(row: Row) -> list[str]:
    """Return the number of GPUs of a row as texts, on the cpu device of cores; none for one GPU."""
    if row["gpus"] is None:
        return []
    several = counted(row["gpus"], "GPU" if row["device"] == "cuda" else "core")
    return [f"split over {several}" if row["tensor"] else several]


def routing_of(row: Row) -> list[str]:
    """Return the steps of a layer with experts and its routing as texts; none for other workloads.

    Files of other programs may lack any value.
    """
    if row["expert_routing"] is None:
        return []
    parts = [f"routing {row['expert_routing']}"]
    if row["experts_per_token"] is not None and row["experts"] is not None:
        parts[0] = f"{row['experts_per_token']} of {row['experts']} experts, {parts[0]}"
    if row["active_experts"] is not None and row["largest_expert_tokens"] is not None:
        most = f"{digits(row['largest_expert_tokens'], 3)} tokens each (means)"
        parts[0] += f": {digits(row['active_experts'], 3)} active, at most {most}"
    if row["steps"] is not None and row["step_tokens"] is not None:
        parts = [f"{counted(row['steps'], 'step')} of {counted(row['step_tokens'], 'token')}", *parts]
    return parts


def cached(row: Row) -> str:
    """Return what a cache of prefixes had: `448 tokens of prompts cached (87.5% of full blocks)`."""
    return f"{row['cached_tokens']:,} tokens of prompts cached ({row['prefix_hit_rate'] or 0.0:.1%} of full blocks)"


def arrivals(row: Row) -> str:
    """Return the arrivals: `closed`, `poisson 1,000/s`."""
    rate_per_s = row["arrival_rate_per_s"]
    return str(row["arrival"]) + ("" if rate_per_s is None else f" {rate(rate_per_s)}")


def rate(per_s: float) -> str:
    """Return a rate to four significant digits: `2.5/s`, `1,000/s`."""
    return f"{digits(per_s, 4)}/s"


def digits(value: float, most: int = 6, separator: str = ",") -> str:
    """Return a number in up to `most` digits; a larger one with all before its point: `0.25`, `1,234,567`."""
    return f"{value:{separator}.{most}g}" if abs(value) < 10**most - 0.5 else f"{value:{separator}.0f}"


def timeout(us: float) -> str:
    """Return a timeout as its setting has it: `2000`."""
    return digits(us, separator="")


def batching(row: Row) -> list[str]:
    """Return the batching, as far as it is known: `max_batch 64` and `timeout 150 us`."""
    known = [] if row["max_batch"] is None else [f"max_batch {row['max_batch']}"]
    return known if row["timeout_us"] is None else [*known, f"timeout {timeout(row['timeout_us'])} us"]


def counted(number: int, noun: str) -> str:
    """Return `1 repeat`, or `1,200 repeats`."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def disorder(row: Row) -> str | None:
    """Return the violation of the commands' order, or None. Independent commands have no order."""
    if row["ordering"] == "violated":
        return ORDER_VIOLATED
    return DEPENDENCIES_IGNORED if row["ordering"] == "none" and not is_independent(row) else None


def other_order(row: Row, base: Row) -> str | None:
    """Return what one mode kept and the other did not: then they did not do the same work. None: they agree."""
    one, other = disorder(row), disorder(base)
    if one == other:
        return None
    kept, lost = (row, base) if one is None else (base, row)
    broke = "broke the order" if disorder(lost) == ORDER_VIOLATED else "ignored dependencies"
    return f"{lost['mode']} {broke} that {kept['mode']} kept"


def is_independent(row: Row) -> bool:
    """Return whether the commands are independent of each other. Files of version 0.1 do not say it: gemv_* were."""
    known = row["independent"]
    return bool(known) if known is not None else str(row["workload"]).startswith("gemv_")


def without_copies(rows: Iterable[Row]) -> list[Row]:
    """Return the rows without duplicates: a folder given twice must not double the repeats."""
    kept: list[Row] = []
    seen: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        twins = seen.setdefault(tuple(row[name] for name in (*STREAM, *CONFIGURATION, "repeat")), [])
        if any(repr(row) == repr(twin) for twin in twins):  # compared as text, since a NaN does not equal itself
            continue
        if twins:
            raise DataError(row["run_id"], None, f"two different rows for {row['mode']}, repeat {row['repeat']}")
        twins.append(row)
        kept.append(row)
    return kept


def grouped(rows: Iterable[Row], names: Sequence[str]) -> list[list[Row]]:
    """Return groups of rows that agree in all columns `names`."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(groups.values())


def stream_order(rows: list[Row]) -> tuple[object, ...]:
    """Return a key that sorts streams into display order."""
    row = rows[0]
    firsts = ((_FIRST_WORKLOADS, row["workload"]), (_FIRST_DTYPES, row["dtype"]))
    known = [first.index(name) if name in first else len(first) for first, name in firsts]
    return (bool(row["traced"]), row["device"] != "cuda", *known, *(sortable(row[name]) for name in STREAM))


def sortable(value: object) -> tuple[bool, float, str]:
    """Return a sort key for nulls, numbers and texts, which Python does not compare with each other."""
    number = float(value) if isinstance(value, int | float) else 0.0
    return (value is not None, number, value if isinstance(value, str) else "")
