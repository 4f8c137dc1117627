"""Titles of streams say what types their numbers have."""

from support.results.summary_rows import row

from launchopt.analysis.stream_rows import number_types, stream_title, weight_element_bytes


def test_a_title_says_how_quantised_weights_are_stored() -> None:
    plain, packed = row(dtype="bf16"), row(dtype="bf16", weights="int4 per block")
    assert stream_title(plain) == "gemv_micro bf16, 2,000,000 commands"
    assert stream_title(packed) == "gemv_micro bf16, int4 weights per block, 2,000,000 commands"
    assert number_types(packed) == "bf16, int4 weights per block"


def test_an_element_of_a_weight_has_the_bytes_of_its_format() -> None:
    formats = [None, "fp8 per channel", "int4 per block"]
    assert [weight_element_bytes(row(dtype="bf16", weights=each)) for each in formats] == [2, 1, 0.5]
