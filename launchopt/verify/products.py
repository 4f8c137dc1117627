"""Compare outputs of independent commands of one shape with products in float64, many weights at a time.

Commands with the same weight and input have one product. A unit is one weight with the products of some of its inputs.
A block is as many units as fit into memory; its products are one batched matrix product. Blocks are independent of each
other, so threads of a pool can compare them at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import HALF_BITS, LOW_HALF, ShapeKey
from launchopt.devices.arenas import Arenas, to_host
from launchopt.streams.operands import arenas_of
from launchopt.types import Array
from launchopt.weights.quantiser import rounded

Numbers = NDArray[np.int64]
FP8_UNIT = 2.0**-13  # what tensor cores keep of a sum of fp8 products, relative to its largest part
FP8_CHUNK = 128  # elements of k of such a sum, which is then added in fp32


def typical_output(shape: ShapeKey) -> float:
    """Return the expected root mean square of an output element, sqrt(k) / 3.

    An element is a sum of k products of inputs uniform in [-1, 1), each product of variance 1/9. The rms of the
    reference itself is not used, since cancellation can make it arbitrarily small in a small output.
    """
    return math.sqrt(shape.k) / 3


class OutputError(NamedTuple):
    """The error of an output: that of its element with the largest share of its bound. Units: a typical output."""

    share: float  # error / bound; infinite for NaN
    error: float  # |out - reference|; infinite for NaN
    bound: float


class Tolerance(NamedTuple):
    """The bound on |out - reference| of an element, whose inputs are exact: storing * |reference| + computing.

    Storing the result rounds it by the unit roundoff u of its dtype at most. The error of k additions in fp32, in any
    order, grows like sqrt(k) * 2**-24 typical outputs (Higham & Mary 2019, probabilistic bound); the factor is 8.
    Parts of a sum that are added in half precision exceed the bound.

    A quantised weight stands for codes times scales, exactly. Each product gets one rounding more: that of the weight
    in fp32, or that of a sum which is multiplied by its scale.

    fp8 by fp8 (`quantised_inputs`): tensor cores of Ada and Hopper add 32 products to a sum at a time. They align these
    to the largest one, and keep about 14 bits (DeepSeek-V3, arXiv:2412.19437, 3.5.2). Without FAST_ACCUM, cuBLASLt adds
    such sums in fp32 from time to time; CUTLASS does so every 128 products. A sum of 128 products is sqrt(128) / 3,
    typically, and each addition errs by 2**-13 of it. k additions err by sqrt(k) times as much, as above: by
    2**-13 sqrt(128) typical outputs, whatever k is. The factor is 8 again. In an emulation (tests/verify) the largest
    errors are 4% to 15% of this bound. Without additions in fp32, those of 8,192 products exceed it.
    """

    storing: float
    computing: float

    @staticmethod
    def of(shape: ShapeKey, quantised_inputs: bool = False) -> Tolerance:
        """Return the bound for products of a shape. quantised_inputs: the inputs are fp8, as the weights."""
        roundings = math.sqrt(shape.k) + bool(shape.packing) + quantised_inputs
        computing = roundings * 2.0**-24
        if quantised_inputs:
            computing += math.sqrt(FP8_CHUNK) * FP8_UNIT
        return Tolerance(shape.dtype.unit_roundoff, 8 * computing * typical_output(shape))


class _Pairs(NamedTuple):
    """The pairs of weight and input that some commands have, sorted by weight, and the commands of each pair."""

    a: Numbers  # [pairs]: slot of the weight
    b: Numbers  # [pairs]: slot of the input
    order: Numbers  # [commands]: the commands, sorted by pair
    first: Numbers  # [pairs + 1]: where in `order` the commands of each pair begin


class _Block(NamedTuple):
    """Units that are compared together. A unit is a range of pairs with one weight."""

    start: Numbers  # [units]: first pair
    stop: Numbers  # [units]: behind the last pair


class Products:
    """Compares outputs of the commands of one shape with products in float64.

    slots: slots of A, B and C, [commands, 3]. columns: columns of the outputs that are compared. chunk_bytes: memory
    that one thread may use at a time, roughly. quantised_inputs: the run quantised its inputs as the weights are.
    """

    def __init__(
        self,
        arenas: Arenas,
        shape: ShapeKey,
        slots: NDArray[np.uint32],
        columns: Numbers,
        chunk_bytes: int,
        quantised_inputs: bool = False,
    ) -> None:
        self.shape, self.commands = shape, len(slots)
        self._arenas, self._slots, self._columns = arenas, slots, columns
        self._quantised_inputs = quantised_inputs
        self._tolerance = Tolerance.of(shape, quantised_inputs)
        self._most_elements = max(1, chunk_bytes // 8)
        self._keys = arenas_of(shape)

    @property
    def compared_elements(self) -> int:
        """Elements compared of the output of one command."""
        return self.shape.m * len(self._columns)

    @property
    def flops(self) -> int:
        """FLOPs of checking one command."""
        return 2 * self.compared_elements * self.shape.k

    def output_slot(self, command: int) -> int:
        """Return the slot of the output of a command."""
        return int(self._slots[command, 2])

    def compare(self, commands: Numbers, errors: NDArray[np.float64], pool: ThreadPoolExecutor) -> Iterator[int]:
        """Write the error of each command to `errors`; yield the number of commands done since the last time.

        errors: fields of `OutputError` of each command, [3, commands].
        """
        pairs = self._pairs(commands)
        yield from pool.map(partial(self._compare, commands, pairs, errors), self._blocks(pairs))

    def _pairs(self, commands: Numbers) -> _Pairs:
        a, b = self._slots[commands, 0].astype(np.uint64), self._slots[commands, 1]
        both = a << np.uint64(HALF_BITS) | b
        order = np.argsort(both, kind="stable")
        ordered = both[order]
        first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        pairs = ordered[first]
        a, b = pairs >> np.uint64(HALF_BITS), pairs & np.uint64(LOW_HALF)
        return _Pairs(a.astype(np.int64), b.astype(np.int64), order, np.append(first, len(order)))

    def _blocks(self, pairs: _Pairs) -> Iterator[_Block]:
        """Yield blocks of units that fit into memory; units of a block have about the same number of pairs."""
        m, k, columns = self.shape.m, self.shape.k, len(self._columns)
        of_input = columns * (m + k)
        most_inputs = max(1, (self._most_elements - m * k) // of_input)
        new_weight = np.flatnonzero(np.diff(pairs.a, prepend=-1))
        sizes = np.diff(new_weight, append=len(pairs.a))
        units = -(-sizes // most_inputs)  # by weight
        within = np.arange(units.sum()) - np.repeat(np.cumsum(units) - units, units)
        start = np.repeat(new_weight, units) + within * most_inputs
        stop = np.minimum(start + most_inputs, np.repeat(new_weight + sizes, units))
        order = np.argsort(start - stop, kind="stable")  # the largest first
        at = 0
        while at < len(order):
            size = int((stop - start)[order[at]])
            count = max(1, self._most_elements // (m * k + size * of_input))
            own = order[at : at + count]
            yield _Block(start[own], stop[own])
            at += count

    def _compare(self, commands: Numbers, pairs: _Pairs, found: NDArray[np.float64], block: _Block) -> int:
        """Write the errors of the commands of a block to their places in `found`; return the number of commands."""
        arenas, xp = self._arenas, self._arenas.xp
        size = int((block.stop - block.start).max())
        products = self._products(pairs, block, size)
        counts = pairs.first[block.stop] - pairs.first[block.start]
        unit = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + pairs.first[block.start][unit]
        pair = np.searchsorted(pairs.first, place, "right") - 1
        product = unit * size + pair - block.start[unit]
        own, typical = pairs.order[place], typical_output(self.shape)
        most = max(1, self._most_elements // (4 * self.shape.m * self.shape.n))
        for first in range(0, len(own), most):
            some = slice(first, first + most)
            outputs = arenas.matrices(self._keys[2], self._slots[commands[own[some]], 2])
            of_columns = outputs if outputs.shape[1] == len(self._columns) else outputs[:, self._columns]
            expected = products[xp.asarray(product[some])]
            errors = xp.abs(of_columns - expected).reshape(len(outputs), -1)
            bounds = self._tolerance.storing * xp.abs(expected).reshape(errors.shape) + self._tolerance.computing
            shares = errors / bounds
            shares[xp.isnan(shares)] = xp.inf
            worst = xp.arange(len(errors)), shares.argmax(axis=1)
            of_each = xp.stack([shares[worst], errors[worst] / typical, bounds[worst] / typical])
            if of_columns is not outputs:
                of_each[:2, xp.isnan(outputs).any(axis=(1, 2))] = xp.inf
            of_each[1, xp.isinf(of_each[0])] = xp.inf
            found[:, own[some]] = to_host(of_each)
        return len(own)

    def _products(self, pairs: _Pairs, block: _Block, size: int) -> Array:
        """Return B @ A.T for the chosen columns of `size` inputs of each unit, [units * size, columns, m]."""
        arenas, (key_a, key_b, _) = self._arenas, self._keys
        weights = arenas.matrices(key_a, pairs.a[block.start]).astype(np.float64, copy=False)
        pair = np.minimum(block.start[:, None] + np.arange(size), block.stop[:, None] - 1)
        inputs = arenas.matrices(key_b, pairs.b[pair.reshape(-1)])
        if self._quantised_inputs:
            inputs = rounded(arenas.xp, inputs, self.shape.packing, np.float64)
        if inputs.shape[1] != len(self._columns):
            inputs = inputs[:, self._columns]
        flat = inputs.astype(np.float64, copy=False).reshape(len(pair), -1, self.shape.k)
        return (flat @ weights.transpose(0, 2, 1)).reshape(-1, len(self._columns), self.shape.m)
