"""Choose the configurations to time for the GEMMs of a layer with experts, and size their blocks. This needs no GPU.

The configurations are those that engines' tuning finds for such layers on an H100, by rows of an expert, and their
neighbours. Both GEMMs of a step read the same blocks of rows (kernels/expert_align.cu), and share `rows`. All else is
chosen for each of them. The neighbours of the fastest configuration are timed, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from launchopt.devices.cublaslt.kernel_plans import Launch
from launchopt.devices.triton.tuning import LEAST_DOT, power_of_two
from launchopt.kernels.shared import ALIGN_THREADS, BLOCK_WORDS, EXPERT_ALIGN
from launchopt.streams.experts.layout import ExpertLayer

LEAST_ROWS, MOST_ROWS = 16, 128
GROUP = 16  # blocks that a group of programs shares, if it is not 1
WORD_BYTES = 4
MOST_WARPS = 8


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """One way to divide the GEMMs of experts.

    A program multiplies up to `rows` rows of inputs by `features` rows of a weight. It reads `depth` elements of k at
    a time, with `stages` loads in flight. group: blocks of rows whose programs are neighbours.
    """

    rows: int
    features: int
    depth: int
    warps: int
    stages: int
    group: int = 1

    def __str__(self) -> str:
        sizes = f"{self.rows}x{self.features}x{self.depth}"
        return f"{sizes}, {self.warps} warps, {self.stages} stages, groups of {self.group}"


# By rows: (features, depth, warps, stages).
SIZES = {
    16: (
        *((32, 64, 4, 4), (32, 128, 4, 5), (32, 256, 4, 2), (64, 64, 4, 3), (64, 64, 4, 5), (64, 128, 4, 3)),
        *((64, 128, 4, 4), (64, 256, 4, 3), (128, 64, 4, 4), (128, 128, 4, 3), (128, 128, 8, 4), (256, 128, 8, 3)),
    ),
    32: (
        *((64, 64, 4, 4), (64, 128, 4, 3), (64, 128, 4, 4), (128, 64, 4, 4), (128, 128, 4, 3), (128, 128, 8, 3)),
        *((256, 64, 8, 4), (256, 128, 8, 3)),
    ),
    64: (
        *((64, 64, 4, 4), (64, 128, 4, 3), (128, 64, 4, 3), (128, 64, 8, 4), (128, 128, 8, 3), (256, 64, 8, 4)),
        (256, 64, 8, 3),
    ),
    128: ((64, 64, 4, 4), (128, 64, 4, 3), (128, 64, 8, 4), (128, 128, 8, 3), (256, 64, 8, 3), (256, 64, 8, 4)),
}


def rows_to_try(layer: ExpertLayer, active: float) -> list[int]:
    """Return the most rows of a block to try: about the rows of an expert. active: experts of a step that have rows."""
    mean = power_of_two(max(1, round(layer.rows / active)))
    return sorted({min(max(LEAST_ROWS, rows), MOST_ROWS) for rows in (mean // 2, mean, 2 * mean)})


def expert_configs(m: int, k: int, rows: int) -> list[ExpertConfig]:
    """Return the configurations to time for weights [m, k] and blocks of `rows` rows. None is larger than a weight."""
    features, depth = (max(LEAST_DOT, power_of_two(size)) for size in (m, k))
    found = (ExpertConfig(rows, *sizes) for sizes in SIZES[rows])
    fitting = (replace(each, features=min(each.features, features), depth=min(each.depth, depth)) for each in found)
    return list(dict.fromkeys(fitting))


def neighbours(config: ExpertConfig, m: int, k: int) -> list[ExpertConfig]:
    """Return the configurations for weights [m, k] that differ from one in a single number, which is not `rows`."""
    features, depth, warps, stages = config.features, config.depth, config.warps, config.stages
    near = (
        *(replace(config, features=each) for each in (features // 2, 2 * features) if LEAST_DOT <= each < 2 * m),
        *(replace(config, depth=each) for each in (depth // 2, 2 * depth) if LEAST_DOT <= each < 2 * k),
        *(replace(config, warps=each) for each in (warps // 2, 2 * warps) if 2 <= each <= MOST_WARPS),
        *(replace(config, stages=each) for each in (stages - 1, stages + 1) if each >= 2),
        replace(config, group=GROUP if config.group == 1 else 1),
    )
    return list(near)


def most_blocks(layer: ExpertLayer, rows: int) -> int:
    """Return the most blocks of a step: each expert with rows has one, and one more for every `rows` further rows."""
    busy = min(layer.experts, layer.rows)
    return busy + (layer.rows - busy) // rows


def blocks_bytes(layer: ExpertLayer, rows: int) -> int:
    """Return the bytes of the blocks of a step."""
    return WORD_BYTES * (BLOCK_WORDS + most_blocks(layer, rows) * (BLOCK_WORDS + rows))


def align_launch(layer: ExpertLayer, pitch_bytes: int, rows: int) -> Launch:
    """Return the launch of kernels/expert_align.cu. pitch_bytes: from one column of the table to the next."""
    words = np.zeros(1, EXPERT_ALIGN)
    words[0] = (layer.top_k, layer.columns, layer.experts, pitch_bytes, rows)
    return Launch((1, 1, 1), (ALIGN_THREADS, 1, 1), 2 * WORD_BYTES * (layer.experts + 1), words.view(np.int64))
