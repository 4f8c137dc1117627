"""The key of a block of tokens: a hash of its tokens and of all tokens before them.

The state of one hash goes from block to block, so a token is hashed once. Two blocks have the same key only if all
tokens up to the end of the block are the same. A block that is not full has no key. The hash is SHA-256: with a weaker
one, a client who finds two prompts with the same keys would be served from the cache of another client's prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

ROOT = b""  # what stands before the first block


def keys_of(tokens: NDArray[np.int32], block: int, root: bytes = ROOT) -> Sequence[bytes]:
    """Return the key of each full block of `block` tokens. root: tells apart prompts that must not share, if any."""
    size = block * tokens.itemsize
    text, chain, keys = tokens.tobytes(), sha256(root), []
    for start in range(0, len(text) - size + 1, size):
        chain.update(text[start : start + size])
        keys.append(chain.digest())
    return keys
