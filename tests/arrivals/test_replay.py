"""Which reader a file goes to, by name or by how it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.arrivals import azure, request_csv
from launchopt.arrivals.replay import FORMATS, HEAD_BYTES, read_requests
from launchopt.errors import DataError

FILES = {
    "azure": f"{azure.HEADER}\n2023-11-16 18:17:03.98,4,5\n2023-11-16 18:17:03.99,6,7\n",
    "mooncake": "".join(
        f'{{"timestamp": {ms}, "input_length": {n}, "output_length": {n + 1}}}\n' for ms, n in ((0, 4), (10, 6))
    ),
    "csv": f"{request_csv.HEADER}\n0,4,5\n10,6,7\n",
}


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_every_format_is_tested() -> None:
    assert tuple(FILES) == FORMATS[1:]


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("name", list(FILES))
@pytest.mark.parametrize("auto", [True, False])
def test_each_format(tmp_path: Path, name: str, auto: bool, limit: int | None, bom: str) -> None:
    requests = read_requests(written(tmp_path, bom + FILES[name]), "auto" if auto else name, limit)
    assert requests.arrival_ns.tolist() == [0, 10_000_000][:limit]
    assert requests.context_tokens.tolist() == [4, 6][:limit]
    assert requests.generated_tokens.tolist() == [5, 7][:limit]
    assert requests.after.tolist() == [-1, -1][:limit]


def test_csv_with_after_is_recognized(tmp_path: Path) -> None:
    path = written(tmp_path, f"{request_csv.HEADER_AFTER}\n0,1,1,\n0,1,1,0\n")
    assert read_requests(path, "auto", None).after.tolist() == [-1, 0]


@pytest.mark.parametrize("name", list(FILES))
def test_leading_blank_lines_are_that_readers_to_refuse(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, f"\r\n\n{FILES[name]}")
    with pytest.raises(DataError) as automatic:
        read_requests(path, "auto", None)
    with pytest.raises(DataError) as named:
        read_requests(path, name, None)
    assert str(automatic.value) == str(named.value)


@pytest.mark.parametrize(("name", "other"), [(a, b) for a in FILES for b in FILES if a != b])
def test_a_named_format_is_not_guessed(tmp_path: Path, name: str, other: str) -> None:
    with pytest.raises(DataError) as caught:
        read_requests(written(tmp_path, FILES[name]), other, None)
    assert caught.value.line == 1


@pytest.mark.parametrize(
    ("content", "begins"),
    [
        ("", "the file is empty; "),
        (" \n\t", "the file is empty; "),
        ("prompt,output\n", "not recognized; "),
        ("Arrival_ms,prompt_tokens", "not recognized; "),
        ("[{}]", "not recognized; "),
        (b"\x1f\x8b\x08\x00", "not recognized; "),
        ("\n" * HEAD_BYTES + FILES["csv"], "the file is empty; "),
    ],
)
def test_not_recognized(tmp_path: Path, content: str | bytes, begins: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_requests(path, "auto", None)
    assert caught.value.line is None
    assert caught.value.problem == (
        f"{begins}expected azure (beginning TIMESTAMP), mooncake (beginning {{) or csv (beginning arrival_ms)"
    )


@pytest.mark.parametrize("file_format", FORMATS)
def test_unreadable(tmp_path: Path, file_format: str) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_requests(tmp_path / "none", file_format, None)
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_requests(tmp_path, file_format, None)


@settings(deadline=None)
@given(st.binary() | st.tuples(st.sampled_from(list(FILES.values())), st.binary()).map(lambda p: p[0].encode() + p[1]))
def test_any_bytes_parse_or_are_a_data_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = written(tmp_path_factory.getbasetemp(), content)
    for file_format in FORMATS:
        try:
            assert len(read_requests(path, file_format, None)) >= 1
        except DataError as error:
            str(error).encode()
