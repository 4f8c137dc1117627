"""From the last outputs of a token to the inputs of the next one, on the host.

Without sampling, the last output is a hidden vector; the next input is that vector, scaled and with random signs. With
sampling, the last output is logits; an id is sampled from them, and the next input is its embedding row. All arrays
hold the storage dtype (`devices.arenas`). `devices.feedback.kernel` does the same on the GPU, equal to the bit.

The signs depend on request and token. Without them, repeated layers turn any vector into the same one (layers with a
ReLU within a few tokens), and a read of another request's data, or of the step before, would go unnoticed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.sampling import GOLDEN, Sampling, SamplingKind, check_vocab, mixed, sample

PARTIAL_SUMS = 1024  # a power of two: the GPU's threads per row


def scaled(hidden: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale vectors, float32 [rows, hidden], to a root mean square of 1/sqrt(3), as uniform [-1, 1) inputs have.

    Zeros stay zeros. Sums of squares are float64, in an order that a GPU can follow with the same roundings: element i
    is added to partial sum i % 1024; then the upper half of the sums is added to the lower half until one is left.
    """
    rows, count = hidden.shape
    padded = np.zeros((rows, -(-count // PARTIAL_SUMS) * PARTIAL_SUMS))
    padded[:, :count] = hidden
    with np.errstate(invalid="ignore"):  # an infinite input gives NaN
        sums = np.zeros((rows, PARTIAL_SUMS))
        for start in range(0, count, PARTIAL_SUMS):
            sums += padded[:, start : start + PARTIAL_SUMS] ** 2
        while sums.shape[1] > 1:
            half = sums.shape[1] // 2
            sums = sums[:, :half] + sums[:, half:]
        factors = np.ones((rows, 1))
        np.divide(float(count), 3.0 * sums, out=factors, where=sums != 0)
        factors = np.sqrt(factors)
        values: NDArray[np.float32] = (padded[:, :count] * factors).astype(np.float32)
    return values


def signed(
    values: NDArray[np.float32], requests: NDArray[np.uint32], tokens: NDArray[np.uint32]
) -> NDArray[np.float32]:
    """Return rows, [rows, hidden], with signs flipped at random; the row's request and token are the seed.

    Bit i % 64 of splitmix64's number i / 64 flips element i. The generator starts with mixed(request << 32 | token).
    """
    counters = (requests.astype(np.uint64) << np.uint64(32)) | tokens.astype(np.uint64)
    starts = mixed((counters + np.uint64(1)) * np.uint64(GOLDEN))
    count = values.shape[1]
    words = np.arange(1, 1 + -(-count // 64), dtype=np.uint64) * np.uint64(GOLDEN)
    bits = mixed(starts[:, None] + words)[:, :, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    turned: NDArray[np.float32] = np.where(bits.reshape(len(values), -1)[:, :count] != 0, -values, values)
    return turned


class HostFeedback:
    """Feeds back with NumPy. ConfigError: the vocabulary is too large, or empty.

    embedding: [vocab, hidden], or None without sampling.
    """

    def __init__(self, dtype: Dtype, sampling: Sampling, embedding: NDArray[Any] | None) -> None:
        self._dtype, self._sampling = dtype, sampling
        if sampling.kind is not SamplingKind.none:
            if embedding is None:
                raise ValueError("sampling needs an embedding")
            check_vocab(sampling, len(embedding))
            self._embedding = embedding

    def advance(
        self, finals: NDArray[Any], requests: NDArray[np.uint32], tokens: NDArray[np.uint32]
    ) -> tuple[NDArray[Any], NDArray[np.int32] | None]:
        """Return the next inputs, [rows, hidden], and the ids, int32 [rows] (None without sampling).

        finals: [rows, hidden] without sampling, [rows, vocab] with it. requests, tokens: [rows]. A row of logits that
        holds a NaN gets the id NO_ID and embedding row 0.
        """
        values = to_float32(finals, self._dtype)
        if self._sampling.kind is SamplingKind.none:
            return from_float32(signed(scaled(values), requests, tokens), self._dtype), None
        ids = sample(values, self._sampling, requests, tokens)
        return self._embedding[np.maximum(ids, 0)], ids
