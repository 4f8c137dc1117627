"""Are the tokens those that the weights give? Every token against float64, outside the timed region.

Two checks, neither of which believes the consumer. **Tokens**: from a token's actual input (its prompt's last row, the
fed-back output before it, or the row of the id before it) all GEMMs of the step are done again in float64. Where
nothing is sampled its last output, which was kept for every token, must be that result; with sampling its id must be
one that these logits allow. A command that ran too early, read another's data, or was left out shows here, whatever
wrote over it later. **Commands**: of each request's last step the outputs are still there: each must be the product of
its weight and the output before it, features that no later GEMM reads included.

Errors are relative to the rms of the exact result of a row (commands: of its input, which has the same). A token's
passes through `depth` roundings, which add up like a random walk (Higham & Mary 2019): sqrt(depth) of a command's;
where a model is narrow, the size of what it multiplies walks too, and the bound is wider by sqrt(1 + depth / width).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.arenas import Arenas, from_float32, to_float32
from launchopt.feedback import scaled
from launchopt.sampling import Sampling, plausible
from launchopt.verify import Verification, tolerance
from launchopt.workloads import chain as ch
from launchopt.workloads.chain import ChainStream, StepKind
from launchopt.workloads.stream import ArenaKey

CHUNK_BYTES = 256 << 20
MOST_SAMPLED = 1024  # tokens whose id is checked, at random: a float64 row of a vocabulary takes a millisecond


def verify_chain(
    stream: ChainStream, arenas: Arenas, sampling: Sampling, ids: NDArray[np.int64], max_columns: int, seed: int
) -> Verification:
    """Check the tokens, whose ids are `ids` [tokens], and the commands of every request's last step."""
    generator = np.random.default_rng([seed, 0xC4A1])
    check = _Check(stream, arenas)
    check.tokens(sampling, ids, generator)
    check.last_steps(ids, generator, max_columns)
    share = check.compared / stream.commands
    wrong = min(check.wrong, stream.commands)  # an output may be wrong as a token and as a command
    return Verification(stream.commands, wrong, check.worst, check.bound, share, check.first[1])


class _Check:
    """What has been found so far."""

    def __init__(self, stream: ChainStream, arenas: Arenas) -> None:
        self._stream, self._arenas, self._xp = stream, arenas, arenas.xp
        self._flat = arenas.arrays[stream.activations].reshape(-1)
        self._unit = stream.activations.cols
        self._moves = stream.replica_moves
        self.wrong, self.compared, self.worst, self.bound = 0, 0, 0.0, 0.0
        self.first: tuple[int, str | None] = (stream.tokens + 1, None)  # of what is wrong: the earliest token, if any

    def _note(self, errors: Any, limit: float, name: Any, numbers: NDArray[np.int64] | None = None) -> None:
        """`name(i)` says what row i is, `numbers` which token; None for a command."""
        found = errors if isinstance(errors, np.ndarray) else errors.get()
        found = np.where(np.isnan(found), np.inf, found)
        bad = found > limit
        if bad.any():
            at = int(np.argmax(bad))
            number = self._stream.tokens if numbers is None else int(numbers[at])
            self._name(number, f"{name(at)}: error {found[at]:.3g}, allowed {limit:.3g}")
        self.wrong += int(bad.sum())
        self.worst, self.bound = max(self.worst, float(found.max())), max(self.bound, limit)

    def _name(self, number: int, text: str) -> None:
        if number < self.first[0]:
            self.first = number, text

    def _weight(self, row: int, replica: int) -> Any:
        """The weight of a template's row, float64 [m, k]."""
        record = self._stream.template[row]
        arena = ArenaKey("a", int(record["m"]), int(record["k"]), self._stream.dtype)
        slot = int(record["slot_a"]) + replica * int(self._moves[row])
        return self._arenas.matrices(arena, [slot])[0].astype(np.float64)

    def _rows(self, units: NDArray[np.int64], width: int) -> Any:
        """`width` elements from each unit on, float64 [len(units), width]."""
        xp = self._xp
        first = xp.asarray(units) * self._unit
        taken = self._flat[first[:, None] + xp.arange(width)]
        return to_float32(taken, self._stream.dtype).astype(np.float64)

    def tokens(self, sampling: Sampling, ids: NDArray[np.int64], generator: np.random.Generator) -> None:
        """Every token again from its input; with sampling a random choice of them."""
        stream = self._stream
        numbers = np.arange(stream.tokens)
        if stream.vocab is not None and len(numbers) > MOST_SAMPLED:
            numbers = np.sort(generator.choice(numbers, MOST_SAMPLED, replace=False))
        first = stream.table[:, ch.FIRST_TOKEN]
        requests = np.searchsorted(first, numbers, "right") - 1
        at = numbers - first[requests]
        widest = max(stream.vocab or 0, *(m for m, _ in stream.linears))
        most = max(1, CHUNK_BYTES // (8 * 3 * widest))
        for replica in range(min(stream.replicas, int(stream.outputs.max()))):
            chosen = np.flatnonzero(at % stream.replicas == replica)
            for start in range(0, len(chosen), most):
                part = chosen[start : start + most]
                self._some_tokens(numbers[part], requests[part], at[part], replica, sampling, ids)

    def _some_tokens(
        self,
        numbers: NDArray[np.int64],
        requests: NDArray[np.int64],
        at: NDArray[np.int64],
        replica: int,
        sampling: Sampling,
        ids: NDArray[np.int64],
    ) -> None:
        stream, xp = self._stream, self._xp
        values = self._inputs(numbers, requests, at, ids)
        rows = self._token_rows()
        for row in rows:
            weight = self._weight(row, replica)
            values = values[:, : weight.shape[1]] @ weight.T
        limit = _token_limit(stream.dtype, len(rows), stream.hidden, max(k for _, k in stream.linears))
        rms = xp.sqrt((values**2).mean(axis=1))

        def name(i: int) -> str:
            return f"token {at[i]} of request {requests[i]}"

        if stream.vocab is None:
            kept = self._arenas.arrays[stream.history][xp.asarray(numbers), : stream.hidden]
            got = to_float32(kept, stream.dtype).astype(np.float64)
            self._note(xp.abs(got - values).max(axis=1) / rms, limit, name, numbers)
            return
        tolerances = limit * _host(rms)
        allowed = plausible(
            _host(values),
            ids[numbers].astype(np.int32),
            sampling,
            requests.astype(np.uint32),
            at.astype(np.uint32),
            tolerances,
        )
        self.bound = max(self.bound, limit)
        self.wrong += int((~allowed).sum())
        if not allowed.all():
            i = int(np.argmin(allowed))
            self._name(int(numbers[i]), f"{name(i)}: id {ids[numbers[i]]} does not follow from its logits")

    def _token_rows(self) -> range:
        """Rows of the template whose weights a token passes: those of any kind that ends one."""
        kind = next(i for i, kind in enumerate(self._stream.kinds) if kind.ends_token)
        return self._rows_of(kind)

    def _rows_of(self, kind: int) -> range:
        stops = self._stream.kind_stops
        return range(0 if kind == 0 else int(stops[kind - 1]), int(stops[kind]))

    def _inputs(
        self, numbers: NDArray[np.int64], requests: NDArray[np.int64], at: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> Any:
        """What each token's first GEMM read, float64 [rows, hidden]."""
        stream, xp = self._stream, self._xp
        prompts = np.maximum(stream.asked.context_tokens[requests], 1)
        row_units = stream.units(stream.hidden)
        units = stream.table[requests, ch.PROMPT] + (prompts - 1) * row_units
        later = at > 0
        if stream.vocab is not None:
            units[later] = np.clip(ids[numbers[later] - 1], 0, stream.vocab - 1) * row_units  # no id reaches beyond
            return self._rows(units, stream.hidden)
        values = self._rows(units, stream.hidden)
        if later.any():
            before = self._arenas.arrays[stream.history][xp.asarray(numbers[later] - 1), : stream.hidden]
            wide = _host(to_float32(before, stream.dtype))
            fed = to_float32(from_float32(scaled(wide), stream.dtype), stream.dtype).astype(np.float64)
            values[xp.asarray(np.flatnonzero(later))] = xp.asarray(fed)
        return values

    def last_steps(self, ids: NDArray[np.int64], generator: np.random.Generator, max_columns: int) -> None:
        """Each command of every request's last step whose output nothing wrote over, and whose input is known."""
        stream = self._stream
        decodes = stream.table[:, ch.DECODES] > 0
        last_kind = np.where(decodes, stream.decode_kind, stream.table[:, ch.REST_KIND])
        for index, kind in enumerate(stream.kinds):
            requests = np.flatnonzero(last_kind == index)
            for replica in range(stream.replicas):
                own = requests[(stream.outputs[requests] - 1) % stream.replicas == replica]
                if len(own):
                    rows = self._checkable(kind, self._rows_of(index))
                    self._steps(kind, rows, own, replica, ids, generator, max_columns)

    def _checkable(self, kind: StepKind, rows: range) -> range:
        """All; of a prompt the last layer's but the first, as all layers write one region."""
        if not kind.is_prompt:
            return rows
        return rows[(self._stream.layers - 1) * len(self._stream.linears) + 1 :]

    def _steps(
        self,
        kind: StepKind,
        rows: range,
        requests: NDArray[np.int64],
        replica: int,
        ids: NDArray[np.int64],
        generator: np.random.Generator,
        max_columns: int,
    ) -> None:
        stream, xp = self._stream, self._xp
        first_row = self._rows_of(stream.kinds.index(kind))[0]
        for row in rows:
            record = stream.template[row]
            shape = ShapeKey(int(record["m"]), int(record["n"]), int(record["k"]), stream.dtype)
            weight = self._weight(row, replica)
            _, b, c = stream.operands(shape)
            columns = np.arange(shape.n)
            if shape.n > max_columns:
                columns = np.sort(generator.choice(shape.n, max_columns, replace=False))
            for part in _parts(requests, 8 * len(columns) * (shape.m + shape.k) * 2):
                if row == first_row:  # its input was written over by what followed it
                    inputs = self._inputs(*self._last_tokens(part), ids)[:, : shape.k]
                else:
                    inputs = self._rows(self._at(part, row, "b", columns, b.row_elements), shape.k)
                outputs = self._rows(self._at(part, row, "c", columns, c.row_elements), shape.m)
                rms = xp.sqrt((inputs**2).mean(axis=1))
                errors = (xp.abs(outputs - inputs @ weight.T).max(axis=1) / rms).reshape(len(part), -1).max(axis=1)
                text = f"{shape}, command {row - first_row} of the last step of request"
                self._note(errors, tolerance(shape), lambda i, part=part, text=text: f"{text} {part[i]}")
                self.compared += len(part)

    def _last_tokens(
        self, requests: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The last token of each: its number, its request, its place in it."""
        at = self._stream.outputs[requests] - 1
        return self._stream.table[requests, ch.FIRST_TOKEN] + at, requests, at

    def _at(
        self, requests: NDArray[np.int64], row: int, role: str, columns: NDArray[np.int64], row_elements: int
    ) -> NDArray[np.int64]:
        """Units at which each request's columns of B or C start, [requests * columns]."""
        stream = self._stream
        origin = (stream.b_from if role == "b" else stream.c_from)[row]
        base = stream.table[requests, ch.LANE if origin == ch.FROM_LANE else ch.PREFILL]
        first = base + int(stream.template[row][f"slot_{role}"])
        units: NDArray[np.int64] = (first[:, None] + columns * (row_elements // self._unit)).reshape(-1)
        return units


def _token_limit(dtype: Dtype, depth: int, width: int, k: int) -> float:
    return math.sqrt((depth + 1) * (1 + depth / width)) * (8 * dtype.unit_roundoff + 8 * math.sqrt(k) * 2.0**-24)


def _parts(values: NDArray[np.int64], bytes_each: int) -> Iterator[NDArray[np.int64]]:
    most = max(1, CHUNK_BYTES // bytes_each)
    for start in range(0, len(values), most):
        yield values[start : start + most]


def _host(values: Any) -> Any:
    return values if isinstance(values, np.ndarray) else values.get()
