"""Operands that are not what the seed gives fail a run, whoever changed them and whenever."""

from collections.abc import Callable

import numpy as np
import pytest

from launchopt.command import Dtype
from launchopt.devices.arenas import Arenas
from launchopt.streams.operands import ArenaKey
from launchopt.types import Array
from launchopt.verify.operands import OperandCheck

SEED = 7
SLOTS = 70


def filled(dtype: Dtype, role: str = "a") -> tuple[Arenas, ArenaKey]:
    key = ArenaKey(role, 33, 65, dtype)
    arenas = Arenas(np, {key: SLOTS, ArenaKey("c", 33, 1, dtype): 5})
    arenas.fill(SEED)
    arenas.poison()
    return arenas, key


@pytest.fixture(params=list(Dtype), ids=lambda dtype: dtype.name)
def dtype(request: pytest.FixtureRequest) -> Dtype:
    return Dtype(request.param)


@pytest.mark.parametrize("role", ["a", "b", "bias", "gain"])
def test_filled_operands_pass_again_and_again(dtype: Dtype, role: str) -> None:
    arenas, _ = filled(dtype, role)
    check = OperandCheck(arenas, SEED)
    assert [check.fault() for _ in range(3)] == [None] * 3


def zeroed(values: Array) -> None:
    values[...] = 0


def copies_of_the_first(values: Array) -> None:
    values[...] = values[0]


def strays(values: Array) -> None:
    values.reshape(-1)[1000:1064] = 1


def two_slots_exchanged(values: Array) -> None:
    values[[3, 9]] = values[[9, 3]]


def every_second_sign(values: Array) -> None:
    values.reshape(-1).view(np.uint8)[7::8] ^= 0x80


def one_sign(values: Array) -> None:
    values[5:6].view(np.uint8)[0, 7] ^= 0x80


@pytest.mark.parametrize(
    "change", [zeroed, copies_of_the_first, strays, two_slots_exchanged, one_sign, every_second_sign]
)
@pytest.mark.parametrize("repeats_before", [0, 2])
def test_a_change_is_found_and_its_slot_is_named(
    dtype: Dtype, change: Callable[[Array], None], repeats_before: int
) -> None:
    arenas, key = filled(dtype)
    check = OperandCheck(arenas, SEED)
    assert [check.fault() for _ in range(repeats_before)] == [None] * repeats_before
    change(arenas.arrays[key])
    fault = check.fault()
    assert fault is not None
    first: dict[Callable[[Array], None], int] = {zeroed: 0, copies_of_the_first: 1, two_slots_exchanged: 3, one_sign: 5}
    slot = first.get(change, 1000 // arenas.arrays[key].shape[1])
    assert f"of weights 33x65 {dtype.name} from slot {slot} on" in fault
    assert check.fault() == fault, "a fault stays one in every later repeat"


def test_another_seed_is_found() -> None:
    arenas, _ = filled(Dtype.fp32)
    assert "from slot 0 on" in str(OperandCheck(arenas, SEED + 1).fault())


@pytest.mark.parametrize("broken", [lambda x: x * 0, lambda x: x * 0 + 0.75, lambda x: x / 2])
def test_a_generator_that_gives_no_random_numbers_is_found(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[Array], Array]
) -> None:
    class Generator:
        def __init__(self, seed: list[int]) -> None:
            self._right = default_rng(seed)

        def random(self, size: int, dtype: type, out: Array | None = None) -> Array:
            values = self._right.random(size, dtype=dtype, out=out)
            values[...] = broken(values)
            return values

    default_rng = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: Generator(seed) if seed[-1] < 2 else default_rng(seed))
    arenas, _ = filled(Dtype.fp32)
    assert "not random" in str(OperandCheck(arenas, SEED).fault())


def test_an_arena_larger_than_a_chunk_and_a_hash_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launchopt.devices.arenas.CHUNK_ELEMENTS", 1 << 12)
    monkeypatch.setattr("launchopt.verify.hashes.HASHED_BYTES", 1 << 12)
    arenas, key = filled(Dtype.bf16)
    check = OperandCheck(arenas, SEED)
    assert check.fault() is None
    arenas.arrays[key][SLOTS - 1, -1] ^= 1
    assert f"1 values of weights 33x65 bf16 from slot {SLOTS - 1} on" in str(check.fault())
