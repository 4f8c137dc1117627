"""Sample token ids from logits, such that equal logits give equal ids in every implementation.

`sample` takes logits, float32 [rows, vocab], and the request and token of each row, and returns int32 ids. `plausible`
checks ids against logits that are known up to an error. The CUDA kernel of `devices.feedback.kernel` must return the
same ids as this implementation, so every step is defined with its rounding:

uniform   bits = splitmix64 number (request << 32 | token) of the generator seeded with mix(seed + GOLDEN), its
          top 24 bits: u = bits / 2**24. mix is splitmix64's finalizer, number i is mix(start + (i + 1) * GOLDEN)
          modulo 2**64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators").
weight    of a token: exp((logit - largest) * (1 / temperature)) in units of 2**-42, truncated to an integer. The
largest
          has 2**42; below exp(-29), which is about one unit, it is 0. In float64 without fused operations: y = x *
          LOG2_E, n = floor(y + 0.5), 2**(y - n) by Horner's rule over POWERS (relative error below 2**-45), 2**n.
sums      of weights are integers, hence equal in any order, and below 2**63 for a vocabulary below 2**21.
kept      top_k: logits >= the k-th largest. top_p: logits >= t, the largest t whose logits >= t weigh ceil(p * all)
          or more. Ties are kept; 0.0 ties with -0.0.
choice    the first kept token at which the running sum exceeds floor(bits * sum / 2**24). Its weight is not 0, so
          that it is a kept one despite all roundings.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from launchopt.errors import ConfigError
from launchopt.types import Array

NO_ID = -1  # id of a row that holds a NaN
MOST_VOCAB = (1 << 21) - 1  # most tokens in a vocabulary, so that sums of weights stay below 2**63

GOLDEN = 0x9E3779B97F4A7C15
MIX_A, MIX_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
U_BITS = 24  # bits of a random number, so that float32 represents it exactly

WEIGHT_BITS = 42  # the largest logit has the weight 2**WEIGHT_BITS
LEAST_EXPONENT = -29.0  # weights exp(x) with x below this are 0
LOG2_E = 1.4426950408889634
# log(2)**i / i!, i = 0 .. 11: the Taylor series of 2**f, for |f| <= 0.5
POWERS = (
    1.0,
    0.6931471805599453,
    0.24022650695910072,
    0.05550410866482158,
    0.009618129107628477,
    0.0013333558146428443,
    0.0001540353039338161,
    1.5252733804059841e-05,
    1.321548679014431e-06,
    1.01780860092397e-07,
    7.054911620801123e-09,
    4.4455382718708116e-10,
)


class SamplingKind(enum.Enum):
    """The rule that chooses a token from logits. none: no token is chosen, and the last hidden vector is fed back."""

    none = "none"
    greedy = "greedy"
    top_k = "top_k"
    top_p = "top_p"


@dataclass(frozen=True, slots=True)
class Sampling:
    """The parameters of sampling. Fields that `kind` does not use are ignored. ConfigError: a value is out of range."""

    kind: SamplingKind
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 0.9
    seed: int = 0  # modulo 2**64

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ConfigError("temperature", self.temperature, "must be finite and above 0; for 0, sample greedily")
        if self.top_k < 1:
            raise ConfigError("top_k", self.top_k, "must be 1 or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError("top_p", self.top_p, "must be above 0 and at most 1")


def uniforms(seed: int, requests: NDArray[np.uint32], tokens: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return random numbers in [0, 1), multiples of 2**-24, float64 [rows]. requests, tokens: [rows]."""
    return _bits(seed, requests, tokens) / np.float64(1 << U_BITS)


def generator_start(seed: int) -> int:
    """Return the start state of the generator for `seed`, below 2**64."""
    return int(mixed(np.array([(seed + GOLDEN) % (1 << 64)], np.uint64))[0])


def sample(
    logits: NDArray[np.float32], chosen: Sampling, requests: NDArray[np.uint32], tokens: NDArray[np.uint32]
) -> NDArray[np.int32]:
    """Return ids, int32 [rows], for float32 logits [rows, vocab]. requests, tokens: [rows], select the random numbers.

    greedy: the lowest index of the largest logit. NO_ID: the row holds a NaN. ConfigError: the kind is none, or the
    vocabulary is empty or too large.
    """
    check_vocab(chosen, logits.shape[1])
    if chosen.kind is SamplingKind.greedy:
        ids = logits.argmax(axis=1)
    else:
        bits = _bits(chosen.seed, requests, tokens)
        ids = np.array([_draw(row, chosen, int(drawn)) for row, drawn in zip(logits, bits, strict=True)], np.int64)
    return np.where(np.isnan(logits).any(axis=1), NO_ID, ids).astype(np.int32)


def plausible(
    logits: NDArray[np.float64],
    ids: NDArray[np.int32],
    chosen: Sampling,
    requests: NDArray[np.uint32],
    tokens: NDArray[np.uint32],
    tolerance: float | NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return whether `sample` could have given each id if each logit were off by at most `tolerance`, bool [rows].

    logits: float64 [rows, vocab]. ids, requests, tokens: [rows]. tolerance: finite, one for all rows or [rows].
    No id that could be right is rejected. An id that could not be right may be accepted, since each bound assumes the
    worst errors independently. NO_ID is plausible for a row with a NaN, and only there. ConfigError as for `sample`.
    """
    check_vocab(chosen, logits.shape[1])
    limits = np.broadcast_to(np.asarray(tolerance, np.float64), len(logits))
    if chosen.kind is SamplingKind.greedy:
        found: NDArray[np.bool_] = plausible_greedy(np, logits, ids, limits)
        return found
    drawn = uniforms(chosen.seed, requests, tokens)
    rows = zip(logits, ids.tolist(), drawn.tolist(), limits.tolist(), strict=True)
    return np.array([_could_be(row, at, chosen, u, limit) for row, at, u, limit in rows], np.bool_)


def plausible_greedy(xp: ModuleType, logits: Array, ids: NDArray[np.int32], limits: NDArray[np.float64]) -> Array:
    """Return what `plausible` does for greedy sampling, as an array of the module `xp`, which has the logits."""
    at, tolerance = xp.asarray(ids), xp.asarray(limits)
    is_broken = xp.isnan(logits).any(axis=1)
    is_id = (at >= 0) & (at < logits.shape[1])
    chosen = logits[xp.arange(len(logits)), xp.where(is_id, at, 0)]
    tolerance = tolerance + ROUNDINGS * xp.where(xp.isfinite(logits), xp.abs(logits), 0.0).max(axis=1)
    fits = is_id & (chosen >= logits.max(axis=1) - 2 * tolerance)
    return xp.where(is_broken | (at == NO_ID), is_broken & (at == NO_ID), fits)


def check_vocab(chosen: Sampling, vocab: int) -> None:
    """Raise ConfigError unless `chosen` can choose from `vocab` tokens."""
    if chosen.kind is SamplingKind.none:
        raise ConfigError("kind", chosen.kind.name, "nothing is sampled")
    if not 1 <= vocab <= MOST_VOCAB:
        raise ConfigError("vocab", vocab, f"must be from 1 to {MOST_VOCAB}")


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's finalizer of each value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(MIX_A)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(MIX_B)
    return values ^ (values >> np.uint64(31))


def _bits(seed: int, requests: NDArray[np.uint32], tokens: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the 24 random bits of each row. Arrays are used throughout, since they overflow without a warning."""
    counters = (requests.astype(np.uint64) << np.uint64(32)) | tokens.astype(np.uint64)
    start = np.array([generator_start(seed)], np.uint64)
    return mixed(start + (counters + np.uint64(1)) * np.uint64(GOLDEN)) >> np.uint64(64 - U_BITS)


def _weights(logits: NDArray[np.float32], largest: np.float32, temperature: float) -> NDArray[np.uint64]:
    """Return the integer weights (see the module). A logit equal to the largest has weight 2**42, even if infinite."""
    with np.errstate(invalid="ignore"):
        exponents = (logits.astype(np.float64) - np.float64(largest)) * (1.0 / temperature)
    exponents[logits == largest] = 0.0
    weights = np.zeros(len(logits), np.uint64)
    some = np.flatnonzero(exponents > LEAST_EXPONENT)
    y = exponents[some] * LOG2_E
    n = np.floor(y + 0.5)
    fraction = y - n
    power = np.full(len(some), POWERS[-1])
    for coefficient in POWERS[-2::-1]:
        power = power * fraction + coefficient
    weights[some] = np.ldexp(power, n.astype(np.int32) + WEIGHT_BITS).astype(np.uint64)
    return weights


def _draw(logits: NDArray[np.float32], chosen: Sampling, bits: int) -> int:
    """Return the id of one row of logits. bits: its 24 random bits."""
    largest = logits.max()
    if np.isnan(largest):
        return NO_ID
    if chosen.kind is SamplingKind.top_k:
        kept = np.flatnonzero(logits >= _kth_largest(logits, chosen.top_k))
        weights = _weights(logits[kept], largest, chosen.temperature)
    else:
        weights = _weights(logits, largest, chosen.temperature)
        kept = np.flatnonzero(weights)  # tokens of weight 0 do not change a sum and are never chosen
        kept, weights = _nucleus(logits, kept, weights[kept], chosen.top_p)
    sums = np.cumsum(weights)
    target = bits * int(sums[-1]) >> U_BITS
    return int(kept[np.searchsorted(sums, np.uint64(target), side="right")])


def _kth_largest(logits: NDArray[np.floating], k: int) -> np.floating:
    at = max(0, len(logits) - k)
    kth: np.floating = np.partition(logits, at)[at]
    return kth


def _nucleus(
    logits: NDArray[np.float32], tokens: NDArray[np.int64], weights: NDArray[np.uint64], p: float
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the tokens of the nucleus, in index order, and their weights; all tokens if p is 1."""
    falling = np.argsort(-logits[tokens])
    sums = np.cumsum(weights[falling])
    needed = min(int(sums[-1]), max(1, math.ceil(p * float(sums[-1]))))
    last = falling[np.searchsorted(sums, np.uint64(needed), side="left")]
    inside = logits[tokens] >= logits[tokens[last]]
    return tokens[inside], weights[inside]


# Relative slack for the roundings of `sample` and of a float64 sum of 2**21 terms. It is far below 2**-24, the distance
# of two random numbers.
SLACK = 1e-9
ROUNDINGS = 2.0**-50  # slack for roundings of sums of logits and tolerances, relative to the largest logit
UNITS = 2.0 ** (1 - WEIGHT_BITS)  # slack for the part of a weight that is cut off
MOST_SPREAD = 300.0  # limit that keeps exp finite; with bounds as wide as this, no id is excluded


def _could_be(logits: NDArray[np.float64], at: int, chosen: Sampling, u: float, tolerance: float) -> bool:
    """Return whether id `at` is plausible for one row."""
    if np.isnan(logits).any() or at == NO_ID:
        return at == NO_ID and bool(np.isnan(logits).any())
    if not 0 <= at < len(logits):
        return False
    largest = logits.max()
    tolerance += ROUNDINGS * float(np.abs(logits).max(initial=0.0, where=np.isfinite(logits)))
    # Each weight, divided by that of the largest given logit, is in [low, high].
    spread = min(tolerance / chosen.temperature, MOST_SPREAD)
    with np.errstate(invalid="ignore"):
        weights = np.exp((logits - largest) * (1.0 / chosen.temperature))
    weights[logits == largest] = 1.0
    high = weights * (math.exp(spread) * (1 + SLACK))
    low = np.maximum(0.0, weights * (math.exp(-spread) * (1 - SLACK)) - UNITS * math.exp(spread))
    if chosen.kind is SamplingKind.top_k:
        # If each number is off by at most `tolerance`, so is the k-th largest of them.
        kth = _kth_largest(logits, chosen.top_k)
        sure, maybe = logits >= kth + 2 * tolerance, logits >= kth - 2 * tolerance
    else:
        sure, maybe = _nucleus_bounds(logits, low, high, chosen.top_p, tolerance)
    if not maybe[at]:
        return False
    # `at` owns an interval of the cumulated weights. These are bounds of its start and its end.
    before, rest = low[:at][sure[:at]].sum(), high[at:][maybe[at:]].sum()
    through, after = high[: at + 1][maybe[: at + 1]].sum(), low[at + 1 :][sure[at + 1 :]].sum()
    return bool(before * (1 - u) <= u * rest + SLACK * (before + rest)) and bool(
        u * after <= (1 - u) * through + SLACK * (after + through)
    )


def _nucleus_bounds(
    logits: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], p: float, tolerance: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which tokens are in the nucleus for all admissible logits, and which for some, bool [vocab] each.

    A token is in the nucleus exactly if the tokens with larger logits weigh less than p of the total. Tokens whose
    given logit is larger by more than two tolerances certainly have a larger logit. Tokens whose given logit is not
    smaller by two tolerances may have a larger one.
    """
    if p == 1:
        return np.ones(len(logits), np.bool_), np.ones(len(logits), np.bool_)
    order = np.argsort(-logits)
    rising = -logits[order]  # ascending, as searchsorted needs it
    lows, highs = (np.concatenate([[0.0], np.cumsum(bound[order])]) for bound in (low, high))
    above = np.searchsorted(rising, -(logits + 2 * tolerance), side="left")
    least, others = lows[above], highs[-1] - highs[above]
    maybe = least * (1 - p) <= p * others + SLACK * (least + others)
    above = np.searchsorted(rising, -(logits - 2 * tolerance), side="right")
    most, others = highs[above] - high, lows[-1] - lows[above] + low
    sure = most * (1 - p) < p * others - SLACK * (most + others)
    return sure, maybe
