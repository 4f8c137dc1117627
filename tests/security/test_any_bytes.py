"""Readers of text, and bytes of any kind: what is read keeps the format's promises, or a DataError says why not.

test_readers changes whole files of a corpus; here hypothesis looks for the smallest content that does harm.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.results.kineto_events import call, kernel
from support.results.request_files import columns, written

from launchopt.arrivals.azure import HEADER as AZURE_HEADER
from launchopt.arrivals.azure import read_azure
from launchopt.arrivals.mooncake import read_mooncake
from launchopt.arrivals.request_csv import HEADER, HEADER_AFTER, read_request_csv
from launchopt.arrivals.requests import Requests, check_graph
from launchopt.errors import DataError
from launchopt.traces.events import Trace
from launchopt.traces.kineto import read_kineto


def check_azure(requests: Requests, limit: int | None) -> None:
    check_mooncake(requests, limit)
    assert (requests.context_tokens >= 1).all()


def check_mooncake(requests: Requests, limit: int | None) -> None:
    assert columns(requests)
    check_csv(requests, limit)
    assert requests.arrival_ns[0] == 0


def check_csv(requests: Requests, limit: int | None) -> None:
    assert columns(requests, graph=True)
    assert limit is None or len(requests) == limit
    assert (np.diff(requests.arrival_ns, prepend=0) >= 0).all()
    assert min(requests.context_tokens.min(), requests.generated_tokens.min()) >= 0
    check_graph(requests.after)


def check_kineto(trace: Trace, limit: int | None) -> None:
    assert trace.events >= 0


@dataclass(frozen=True)
class Text:
    """A format: its reader, a check of each result, good files, and harmful content."""

    read: Callable[[Path, int | None], object]
    check: Callable[[object, int | None], None]
    good: list[bytes]
    likely: st.SearchStrategy[bytes]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.fixed_dictionaries({}, optional={"timestamp": JSON, "input_length": JSON, "output_length": JSON, "x": JSON})
AZURE = f"{AZURE_HEADER}\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,0\r\n".encode()
MOONCAKE = '{{"timestamp": {}, "input_length": 5, "output_length": 6}}\r\n'
EVENTS = [each(9 * n + at, 3, n) for n in range(40) for each, at in ((call, 0), (kernel, 5))]
MANY = json.dumps({"traceEvents": EVENTS}).encode()

TEXTS = {
    "azure": Text(
        read_azure,
        check_azure,
        [AZURE],
        st.binary().map(lambda tail: AZURE_HEADER.encode() + b"\n" + tail)
        | st.text("0123456789-:., +\r\n").map(lambda tail: AZURE + tail.encode()),
    ),
    "mooncake": Text(
        read_mooncake,
        check_mooncake,
        ["".join(MOONCAKE.format(stamp) for stamp in ("27482", "3e4")).encode()],
        st.lists(JSON | FIELDS, max_size=3).map(lambda values: "\n".join(map(json.dumps, values)).encode()),
    ),
    "csv": Text(
        read_request_csv,
        check_csv,
        [f"{HEADER_AFTER}\r\n0,5,6,\r\n1.5,7,0,0\n2,1,1,1\n".encode()],
        st.text("0123456789-., \r\n").map(lambda tail: f"{HEADER}\n{tail}".encode())
        | st.lists(st.integers(0, 9)).map(
            lambda after: (HEADER_AFTER + "".join(f"\n1,1,1,{each}" for each in after)).encode()
        ),
    ),
    "kineto": Text(
        lambda path, limit: read_kineto(path), check_kineto, [MANY, gzip.compress(MANY, mtime=0)], st.nothing()
    ),
}


@st.composite
def damaged(draw: st.DrawFn, good: list[bytes]) -> bytes:
    """A good file, or its first bytes, with a few bytes replaced, dropped or put in."""
    content = draw(st.sampled_from(good))
    content = content[: draw(st.integers(0, len(content)) | st.just(len(content)))]
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 3)))
        content = content[:start] + draw(st.binary(max_size=3)) + content[end:]
    return content


@pytest.mark.parametrize("name", TEXTS)
@settings(deadline=None, max_examples=400)
@given(data=st.data(), limit=st.sampled_from([None, 1, 2]))
def test_any_bytes_are_read_or_a_data_error(
    name: str, data: st.DataObject, limit: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = TEXTS[name]
    content = data.draw(st.binary() | text.likely | damaged(text.good), label="content")
    try:
        found = text.read(written(tmp_path_factory.getbasetemp(), content), limit)
    except DataError as error:
        str(error).encode()
        return
    text.check(found, limit)


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "kineto"])
def test_a_file_that_is_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, path = TEXTS[name].read, written(tmp_path, TEXTS[name].good[0])

    def refuse(*_: object) -> None:  # chmod would not stop a test that runs as root
        raise PermissionError(13, "Permission denied")

    with pytest.raises(DataError, match="cannot be read: No such file"):
        read(tmp_path / "none", None)
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read(tmp_path, None)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        read(path, None)


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "kineto"])
def test_fewer_requests_than_asked_for(name: str, tmp_path: Path) -> None:
    good = TEXTS[name].good[0]
    path, there = written(tmp_path, good), {"azure": 2, "mooncake": 2, "csv": 3}[name]
    found: object = TEXTS[name].read(path, there)
    assert isinstance(found, Requests)
    assert len(found) == there
    with pytest.raises(DataError, match=f"{there + 1} requests asked for, but the file has {there}"):
        TEXTS[name].read(path, there + 1)
