"""The limits on JSON: what is within them passes unchanged, in whatever pieces; what is not is a DataError."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.results.kineto_events import raw

from launchopt.errors import DataError
from launchopt.traces import json_stream
from launchopt.traces.json_stream import DEPTH_MAX, NUMBER_BYTES_MAX, JsonStream

TEXTS = st.text(st.sampled_from(list('ab\\"[]{}1,: \n')), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers(-(10**20), 10**20) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def read(path: Path) -> bytes:
    with JsonStream(path) as stream:
        return b"".join(iter(lambda: stream.read(1), b""))


def depth(value: object) -> int:
    if isinstance(value, list | dict):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth, inner), default=0)
    return 0


@settings(max_examples=200, deadline=None)
@given(value=VALUES, chunk_bytes=st.integers(1, 9), packed=st.booleans())
def test_depth_is_exact_whatever_the_texts_hold(
    value: object, chunk_bytes: int, packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = json.dumps([value]).encode()
    path = raw(tmp_path_factory.getbasetemp(), gzip.compress(content) if packed else content, "property.json")
    with patch.object(json_stream, "CHUNK_BYTES", chunk_bytes):
        with patch.object(json_stream, "DEPTH_MAX", depth([value])):
            assert read(path) == content
        with patch.object(json_stream, "DEPTH_MAX", depth([value]) - 1), pytest.raises(DataError, match="nested over"):
            read(path)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_refused(tmp_path: Path, opening: bytes) -> None:
    with pytest.raises(DataError, match=f"nested over {DEPTH_MAX} deep"):
        read(raw(tmp_path, opening * 1_000_000))


@pytest.mark.parametrize("before", [0, 200])
def test_long_numbers_are_refused_wherever_a_chunk_ends(tmp_path: Path, before: int) -> None:
    path = raw(tmp_path, b"[" + b" " * before + b"9" * (2 * NUMBER_BYTES_MAX + 2) + b"]")
    with patch.object(json_stream, "CHUNK_BYTES", 512), pytest.raises(DataError, match="a number of over 300"):
        read(path)


def test_digits_in_a_text_are_no_number(tmp_path: Path) -> None:
    content = b'["' + b"9" * 5000 + b'"]'
    assert read(raw(tmp_path, content)) == content


@pytest.mark.parametrize(
    "content",
    [
        b'["' + b"x" * 5000 + b'"]',
        b'{"traceEvents": [{"a": [' + b"1," * 2500 + b"1]}]}",
        b"[{" + b'"a": 1, ' * 700 + b'"a": 1}]',
    ],
)
def test_a_single_large_value_is_refused(tmp_path: Path, content: bytes) -> None:
    with (
        patch.object(json_stream, "CHUNK_BYTES", 128),
        patch.object(json_stream, "VALUE_BYTES_MAX", 2000),
        pytest.raises(DataError, match="a single value of over"),
    ):
        read(raw(tmp_path, content))


def test_many_small_values_are_not(tmp_path: Path) -> None:
    content = json.dumps({"traceEvents": [{"a": [1, 2], "b": "text"}] * 1000}).encode()
    with patch.object(json_stream, "CHUNK_BYTES", 128), patch.object(json_stream, "VALUE_BYTES_MAX", 2000):
        assert read(raw(tmp_path, content)) == content


PACKED = gzip.compress(json.dumps([{"number": number} for number in range(200_000)]).encode(), 1)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (PACKED[: len(PACKED) // 2], r"the gzip stream ends early: the file was cut short; [1-9][0-9,]+ bytes of JSON"),
        (PACKED[:-4], "the gzip stream ends early"),
        (PACKED[:-8] + b"\0" * 8, "the gzip stream is damaged"),
        (PACKED + b"more", "the gzip stream is damaged"),
        (PACKED[:3], "the gzip stream"),
    ],
)
def test_broken_gzip(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        read(raw(tmp_path, content))


def test_gzip_of_several_members_and_a_byte_order_mark(tmp_path: Path) -> None:
    content = gzip.compress(b"\xef\xbb\xbf[1,") + gzip.compress(b"2]") + b"\0\0"
    assert read(raw(tmp_path, content)) == b"[1,2]"


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read(tmp_path / "none.json")
