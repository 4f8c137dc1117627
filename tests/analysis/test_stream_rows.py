"""Titles of streams say what types their numbers have."""

from support.results.summary_rows import row

from launchopt.analysis.stream_rows import number_types, stream_subtitle, stream_title, weight_bytes


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
