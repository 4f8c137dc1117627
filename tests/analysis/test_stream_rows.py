"""Titles of streams say what types their numbers have; large numbers are written out."""

import pytest
from support.results.summary_rows import row

from launchopt.analysis.stream_rows import batching, digits, number_types, stream_subtitle, stream_title, weight_bytes


def test_a_title_says_how_quantised_weights_are_stored() -> None:
    plain, packed = row(dtype="bf16"), row(dtype="bf16", weights="int4 per block")
    assert stream_title(plain) == "gemv_micro bf16, 2,000,000 commands"
    assert stream_title(packed) == "gemv_micro bf16, int4 weights per block, 2,000,000 commands"
    assert number_types(packed) == "bf16, int4 weights per block"


def test_the_bytes_of_a_weight_are_those_of_its_codes_and_scales() -> None:
    """256 rows of 512: 131,072 values; a scale for each row, or for 128 x 128, or (int4, fp16) for 128 of a row."""
    values = 256 * 512
    known = {
        None: 2 * values,
        "fp8 per channel": values + 4 * 256,
        "int8 per tensor": values + 4,
        "fp8 per block": values + 4 * (256 // 128) * (512 // 128),
        "int4 per block": values // 2 + 2 * 256 * (512 // 128),
    }
    assert {each: weight_bytes(row(dtype="bf16", weights=each), 256, 512) for each in known} == known


def test_a_subtitle_says_what_a_cache_of_prefixes_had() -> None:
    columns = {"scheduler": "continuous, prefixes hash", "cached_tokens": 448, "prefix_hit_rate": 0.875}
    found = stream_subtitle(row(workload="layer", tokens=32, requests=8, **columns))
    assert "scheduler continuous, prefixes hash, 448 tokens of prompts cached (87.5% of full blocks)" in found
    assert "cached" not in stream_subtitle(row(scheduler="continuous"))


@pytest.mark.parametrize(
    ("value", "most", "separator", "text"),
    [(0.25, 6, "", "0.25"), (2000.0, 6, "", "2000"), (999_999.6, 6, "", "1000000"), (999_999.6, 6, ",", "1,000,000"),
     (12_345.6, 4, ",", "12,346"), (1234.0, 4, ",", "1,234"), (9_999.4, 4, ",", "9,999"), (1234.0, 3, ",", "1,234"),
     (1_234_567.0, 6, ",", "1,234,567"), (0.0, 3, ",", "0")],
)  # fmt: skip
def test_a_number_has_no_exponent_however_large(value: float, most: int, separator: str, text: str) -> None:
    assert digits(value, most, separator) == text


def test_a_timeout_of_a_second_is_written_out() -> None:
    assert batching(row(max_batch=512, timeout_us=1e6)) == ["max_batch 512", "timeout 1000000 us"]
    assert batching(row(max_batch=None, timeout_us=None)) == []
