"""Fused launches of a layer with experts: those that a step has, and the macros, grid and arguments of each.

In: the layout of the layer, and the fusions of a stack. Out: `launches_of` names the launches of a step, and
`FusedLaunches` makes the fused ones: `route` (kernels/expert_route.cu), `fused_gate_up` and `fused_down`
(kernels/expert_fused.cu). Quantised weights need these kernels, too. This module needs no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from launchopt.command import INDEX_BYTES, Records
from launchopt.devices.cublaslt.kernel_plans import Launch
from launchopt.kernels.shared_experts import EXPERT_FUSED, EXPERT_ROUTE, ROUTE_EXPERTS, ROUTE_ROWS, ROUTE_WARPS
from launchopt.stack import EXPERT_FUSIONS, Fusion
from launchopt.streams.chains.groups import LeftOut
from launchopt.streams.experts.layout import DOWN, GATE_UP, UNIT_BYTES, ExpertLayout
from launchopt.types import Table

FUSED = ROUTE, FUSED_GATE_UP, FUSED_DOWN = "route", "fused_gate_up", "fused_down"
ROWS = {  # the launches that a fusion makes one of
    Fusion.route: ("router", "top_k", "map", "permute"),
    Fusion.activate: ("gate_up", "silu_mul"),
    Fusion.combine: ("down", "combine"),
}
MOST_TOKENS = 256  # most tokens of a step whose routing, or whose weighted sum, is fused
LARGE = f"fused launches take up to {MOST_TOKENS} tokens a step"
WARP, ITEM_ROWS, LANE_WEIGHTS = 32, 32, 8
ROUTE_STEP = 128  # elements that a warp of expert_route.cu multiplies at a time
ENTRY_WORDS = 4  # of the list of work


def fusions_for(fuse: frozenset[Fusion], tokens: int) -> tuple[frozenset[Fusion], list[LeftOut]]:
    """Return the fusions that are possible for steps of some tokens, and those that are left out."""
    large = {Fusion.route, Fusion.combine} & fuse if tokens > MOST_TOKENS else set[Fusion]()
    return fuse - large, [LeftOut("+".join(ROWS[each]), 1, 1, LARGE) for each in EXPERT_FUSIONS if each in large]


def launches_of(fuse: frozenset[Fusion], is_quantised: bool) -> tuple[str, ...]:
    """Return the names of the launches of a step, in order."""
    routed = (ROUTE,) if Fusion.route in fuse else ROWS[Fusion.route]
    is_fused = is_quantised or Fusion.route in fuse
    gate_up = FUSED_GATE_UP if is_fused or Fusion.activate in fuse else "gate_up"
    down = FUSED_DOWN if is_fused or Fusion.combine in fuse else "down"
    activated = () if Fusion.activate in fuse else ("silu_mul",)
    return (*routed, gate_up, *activated, down, *(() if Fusion.combine in fuse else ("combine",)))


class Division(NamedTuple):
    """How a block of expert_fused.cu is divided: its warps, chunks of a warp at a time, blocks on a multiprocessor."""

    warps: int
    together: int
    blocks: int
    is_even: bool = False  # every warp has the same number of whole chunks


class Memory(NamedTuple):
    """Addresses, or numbers, of 32-bit words that launches leave for later ones. Counters are 0 at first."""

    work: int
    sources: int
    counters: int


class Stepped(NamedTuple):
    """How a launch finds its operands by the number of a step (-DSTEPPED=1). state: address of STEPPED_WORDS words.

    addresses: of step 0, [4]. moves: bytes that each moves by, as of `expert_operands.Move`, [3, 4]. is_output: [4].
    inputs: slots of inputs. copies: of the weights.
    """

    addresses: Table
    moves: Table
    is_output: Table
    inputs: int
    copies: int
    state: int

    @property
    def words(self) -> tuple[object, ...]:
        """Fields of STEPPED."""
        rows = (self.addresses, *self.moves, self.is_output)
        return (*(tuple(row.tolist()) for row in rows), self.inputs, self.copies, self.state)


_NONE = np.zeros((3, 4), np.int64)
_GIVEN = Stepped(_NONE[0], _NONE, _NONE[0], 0, 0, 0)  # operands are given


@dataclass(frozen=True, slots=True)
class FusedLaunch:
    """The kernel of a launch, which is also its file, its macros, and the launch itself."""

    kernel: str
    defines: dict[str, int]
    launch: Launch


class FusedLaunches:
    """Makes the fused launches of the steps of a layer.

    early: with programmatic dependent launch (PDL). multiprocessors: of the GPU.
    """

    def __init__(self, layout: ExpertLayout, fuse: frozenset[Fusion], early: bool, multiprocessors: int) -> None:
        self._layout, self._layer, self._fuse, self._early = layout, layout.layer, fuse, early
        self._multiprocessors = multiprocessors
        layer = self._layer
        self.columns = 8 if layer.columns <= 8 else 16  # most columns of a piece of work
        busy = min(layer.experts, layer.rows)
        self.pieces = busy + (layer.rows - busy) // self.columns  # most pieces that a routing can have
        self._groups = -(-layer.columns // self.columns)

    @property
    def words(self) -> Memory:
        """Words of memory that the launches need."""
        tiles = -(-self._layer.hidden // ITEM_ROWS)
        return Memory(ENTRY_WORDS * self.pieces, self._layer.rows, 1 + self._groups + tiles)

    def of(self, name: str, memory: Memory, stepped: Stepped = _GIVEN) -> FusedLaunch:
        """Return a launch. name: as of `launches_of`. memory: addresses of at least `words`.

        stepped: how it finds its operands by the number of a step; without, they are given.
        """
        if name == ROUTE:
            made = self._route(memory, stepped)
        else:
            made = self._gemm(GATE_UP if name == FUSED_GATE_UP else DOWN, memory, stepped)
        made.defines["STEPPED"] = int(stepped is not _GIVEN)
        return made

    def _pitch(self, features: int) -> int:
        """Return the elements from one row of outputs to the next."""
        return self._layout.units(features) * UNIT_BYTES // self._layout.dtype.itemsize

    def _route(self, memory: Memory, stepped: Stepped) -> FusedLaunch:
        layer, region = self._layer, self._layout.region
        experts, tokens = layer.experts, layer.columns
        parts = ROUTE_WARPS * self.columns * (ROUTE_ROWS + 1)
        scores = ROUTE_WARPS * 2 * ROUTE_EXPERTS * -(-experts // ROUTE_EXPERTS)
        ids_at = max(parts, scores, experts * -(-tokens // 32) + 2 * (experts + 1))
        table_at, map_at = (UNIT_BYTES * (unit - region.logits) for unit in (region.table, region.map))
        words = np.zeros(1, EXPERT_ROUTE)
        words[0] = (
            *(experts, layer.hidden, tokens, layer.top_k, layer.hidden, experts, self._pitch(experts)),
            *(table_at, UNIT_BYTES * self._layout.table_units, map_at, ids_at, self.pieces, *memory),
            *stepped.words,
        )
        whole, even = layer.hidden % LANE_WEIGHTS == 0, layer.hidden % (ROUTE_WARPS * ROUTE_STEP) == 0
        defines = {"COLUMNS": self.columns, "WHOLE": int(whole), "EVEN": int(even), "PDL": int(self._early)}
        grid = -(-experts // ROUTE_ROWS), self._groups, 1
        shared_bytes = INDEX_BYTES * (ids_at + layer.rows)
        return FusedLaunch("expert_route", defines, Launch(grid, (WARP * ROUTE_WARPS, 1, 1), shared_bytes, _all(words)))

    def _gemm(self, which: int, memory: Memory, stepped: Stepped) -> FusedLaunch:
        layer, layout, fuse = self._layer, self._layout, self._fuse
        gated, combines = (which == GATE_UP and Fusion.activate in fuse), which == DOWN and Fusion.combine in fuse
        routed, shape = Fusion.route in fuse, layout.gate_up(1) if which == GATE_UP else layout.down(1)
        gathers = routed and which == GATE_UP
        rows = layer.inner if gated else shape.m
        tiles = -(-rows // (ITEM_ROWS // 2 if gated else ITEM_ROWS))
        how = self.division(shape.k)
        at = {name: UNIT_BYTES * (unit - layout.region.logits) for name, unit in layout.region._asdict().items()}
        words = np.zeros(1, EXPERT_FUSED)
        words[0] = (
            *(rows, shape.k, layer.experts, layer.rows),
            *(layer.hidden if gathers else self._pitch(shape.k), self._pitch(shape.m)),
            *(layout.weights[which].slot_bytes, tiles, at["map"] + INDEX_BYTES * layer.rows),
            *(at["activated"], self._pitch(layer.inner), at["gathered"], self._pitch(layer.hidden)),
            *(layer.columns, layer.top_k, at["table"], UNIT_BYTES * layout.table_units, at["map"], at["out"]),
            *(self._pitch(layer.hidden), self.pieces, memory.work, memory.sources),
            memory.counters + INDEX_BYTES * (1 + self._groups),
            *stepped.words,
        )
        defines = {
            **{"COLUMNS": self.columns, "WARPS": how.warps, "TOGETHER": how.together, "BLOCKS": how.blocks},
            **{"LISTED": int(routed), "GATHERS": int(gathers), "GATED": int(gated), "COMBINES": int(combines)},
            # The launch before a fused one waits for the routing before it lets this one begin.
            "AHEAD": int(self._early and routed and which == DOWN and Fusion.activate in fuse),
            **{"WHOLE": int(shape.k % LANE_WEIGHTS == 0), "EVEN": int(how.is_even), "PDL": int(self._early)},
            **(shape.packing.macros if shape.packing else {}),
        }
        blocks = min(tiles * self.pieces, how.blocks * self._multiprocessors)
        return FusedLaunch("expert_fused", defines, Launch((blocks, 1, 1), (WARP * how.warps, 1, 1), 0, _all(words)))

    def division(self, k: int) -> Division:
        """Return how a block is divided for rows of k weights. A multiprocessor loads at least 64 KB at a time."""
        packing = self._layout.packing
        packed = 8 * self._layout.dtype.itemsize // packing.bits if packing else 1
        chunk = 4 * LANE_WEIGHTS * packed  # weights of four lanes
        chunks = -(-k // chunk)
        warps = 8 if chunks >= 32 else 4
        each = -(-chunks // warps)
        together = 3 if each % 2 and each % 3 == 0 else 2
        # Warps for which a multiprocessor has enough registers. The weighted sum needs more of them.
        if self.columns == 8:
            most = 24 if warps == 8 and not packing else 16
        else:
            most = 12 if warps == 4 and (together == 3 or packed > 2) else 16
        blocks = most // warps
        return Division(warps, together, blocks, k % (warps * together * chunk) == 0)


def _all(words: Records) -> Table:
    return words.view(np.int64)
