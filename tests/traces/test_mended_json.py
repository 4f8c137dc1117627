"""Tokens that are not JSON are replaced wherever a chunk ends, and JSON passes unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.results.kineto_events import raw

from launchopt.traces import json_stream
from launchopt.traces.mended_json import MendedStream

ODD = (
    b'[{"a": N/A, "\xff\xfeb": "x\ny", "c": "\\x41 \\\\ \\" \\\\\\" \\u00e4 '
    + "ä€😀".encode()
    + b'", "d": [1, Infinity, ], "e" : }, nan]'
)
MENDED = '[{"a": null, "��b": "x y", "c": "\\\\x41 \\\\ \\" \\\\\\" \\u00e4 ä€😀", "d": [1, null  ], "e" :null }, null]'
TEXTS = st.text(st.sampled_from(list('ab\\"[]{}1,: \nä€😀/')), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def read(path: Path, chunk_bytes: int) -> tuple[str, int]:
    with patch.object(json_stream, "CHUNK_BYTES", chunk_bytes), MendedStream(path) as stream:
        content = b"".join(iter(lambda: stream.read(1), b"")).decode()
        return content, stream.mended


@pytest.mark.parametrize("chunk_bytes", [*range(1, 40), 10_000])
def test_tokens_are_replaced_wherever_a_chunk_ends(tmp_path: Path, chunk_bytes: int) -> None:
    content, count = read(raw(tmp_path, ODD), chunk_bytes)
    assert content == MENDED
    assert count in (8, 9)  # two bad bytes in two chunks are two
    json.loads(content)


@settings(max_examples=200, deadline=None)
@given(value=VALUES, chunk_bytes=st.integers(1, 9), is_ascii=st.booleans())
def test_json_passes_unchanged(
    value: object, chunk_bytes: int, is_ascii: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = json.dumps([value], ensure_ascii=is_ascii)
    path = raw(tmp_path_factory.getbasetemp(), content.encode(), "property.json")
    assert read(path, chunk_bytes) == (content, 0)


@pytest.mark.parametrize("content", ['["a" b]', "[a b]", '{"a": "b" "c"}', "{a: 1}", "[" + "x" * 65 + "]", "[1,,2]"])
def test_mistakes_of_structure_stay(tmp_path: Path, content: str) -> None:
    assert read(raw(tmp_path, content.encode()), 10_000) == (content, 0)


def test_a_long_run_without_a_comma_takes_no_time(tmp_path: Path) -> None:
    content = "[" + "x" * 500_000 + " " * 500_000 + "]"
    assert read(raw(tmp_path, content.encode()), 1000) == (content, 0)
