"""The part attention: its cases, what it does without a GPU, and on one a launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launchopt.streams.chains.attention import AttentionShape
from runner.bench import attention
from runner.bench.__main__ import main


class Fake:
    """A fake of `AttentionTime`: each launch takes 10 us a request, and reading takes 5."""

    def __init__(self, shape: AttentionShape, requests: int, tokens: int) -> None:
        self.requests = requests

    def us(self) -> float:
        return 10.0 * self.requests

    def reading_us(self) -> float:
        return 5.0 * self.requests


def test_a_launch_is_compared_with_reading_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "AttentionTime", Fake)
    found = [*attention._figures(16, None, 5), *attention._figures(1, 16, 5)]
    assert [(each.case, each.unit, each.samples[0], each.goal) for each in found] == [
        ("16 requests of 4,096 tokens, contiguous: a launch", "us", 160.0, None),
        ("16 requests of 4,096 tokens, contiguous: a launch / reading K and V", "x", 2.0, 1.2),
        ("1 request of 4,096 tokens, pages of 16 tokens: a launch", "us", 10.0, None),
        ("1 request of 4,096 tokens, pages of 16 tokens: a launch / reading K and V", "x", 2.0, None),
    ]
    assert all(len(each.samples) == 5 for each in found)


def test_another_device_is_left_out(tmp_path: Path) -> None:
    assert main(["attention", "--device", "cpu", "--output", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.gpu
@pytest.mark.parametrize("page", [None, 16])
def test_on_a_gpu_a_launch_takes_at_least_the_time_of_reading_keys_and_values(page: int | None) -> None:
    figures: Iterator[attention.Figure] = attention.suite(3, "cuda")
    (ratio,) = [each for each in figures if each.unit == "x" and each.case.startswith("16 requests")][bool(page) :][:1]
    assert min(ratio.samples) > 0.9
