"""Lists of GEMMs: every form of a good one is read alike, and a wrong one is refused in a line that names the place."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import ROOT
from support.processes.limits import limited

from launchopt.command import Dtype
from launchopt.errors import DataError
from launchopt.options import LARGEST
from launchopt.traces import gemm_list
from launchopt.traces.execution_trace import is_execution_trace
from launchopt.traces.gemm_list import ListedGemm, read_gemm_list

PLAIN = "m,n,k,count,dtype,weight,group\n64,1,128,2,fp16,w,a\n32,2,64,,,,b\n"
ROWS = (ListedGemm(64, 1, 128, 2, Dtype.fp16, "w", "a"), ListedGemm(32, 2, 64, 1, None, "", "b"))
OBJECTS = [
    {"m": 64, "n": 1, "k": 128, "count": 2, "dtype": "fp16", "weight": "w", "group": "a"},
    {"m": 32, "n": 2, "k": 64, "group": "b"},
]
GOOD = {
    "plain": PLAIN,
    "bom, semicolons, CRLF and empty cells of a spreadsheet": "\ufeff"
    + "\r\n".join(f"{line};;" for line in PLAIN.replace(",", ";").splitlines())
    + "\r\n;;;;;;;;\r\n",
    "tabs": PLAIN.replace(",", "\t"),
    "old Mac": PLAIN.replace("\n", "\r"),
    "no last line end": PLAIN.rstrip("\n"),
    "blank lines and comments": "# ours\n\n" + PLAIN.replace("\n32", '\n  \n# a comment, "of any kind\n32'),
    "spaces and capitals": PLAIN.replace(",", " , ").replace("m ,", " M ,").replace("fp16", "FP16"),
    "quotes": PLAIN.replace("w,a", '"w","a"').replace("64,1", '"64", "1"'),
    "another order": "group,k,n,m,weight_id,dtype,op,count\na,128,1,64,w,float16,GEMM,2\nb,64,2,32,,,gemm,1\n",
    "other names": PLAIN.replace("weight", "Weight ID").replace("fp16", "float16"),
    "json": json.dumps(OBJECTS, indent=1),
    "json lines": "\n".join(map(json.dumps, OBJECTS)) + "\n\n",
    "json with a bom": "\ufeff" + json.dumps(OBJECTS),
    "json with texts": json.dumps([{**OBJECTS[0], "m": "64"}, {**OBJECTS[1], "weight": None, "dtype": ""}]),
}


@pytest.mark.parametrize("form", GOOD)
def test_every_form_is_read_alike(form: str, tmp_path: Path) -> None:
    path = tmp_path / "gemms"
    for content in (GOOD[form].encode(), gzip.compress(GOOD[form].encode())):
        path.write_bytes(content)
        assert read_gemm_list(path) == ROWS
        assert not is_execution_trace(path)


@pytest.mark.parametrize(("name", "gemms"), [("decoder", 422), ("apart", 1688)])
def test_recorded_lists_that_are_published_share_no_weight_within_a_group(name: str, gemms: int) -> None:
    rows = read_gemm_list(ROOT / f"outputs/reference/recorded/{name}.csv")
    assert sum(row.count for row in rows) == gemms
    assert len({(row.group, row.weight) for row in rows}) == gemms


def test_a_name_in_json_may_be_a_number(tmp_path: Path) -> None:
    path = tmp_path / "gemms.json"
    path.write_text('[{"m": 1, "n": 2, "k": 3, "weight": 7, "group": 0}]')
    assert read_gemm_list(path) == (ListedGemm(1, 2, 3, 1, None, "7", "0"),)


SIZES = f"allowed: whole numbers from 1 to {LARGEST}"
NAMES = "allowed: op, m, n, k, dtype, count, weight, group"
WRONG = {
    "": ": the file is empty; expected a header such as m,n,k,count, or JSON: ",
    "\n \n": ": the file is empty",
    "# nothing\n": ": no GEMMs: only a header",
    "m,n,k\n": ": no GEMMs: only a header",
    "[]": ": no GEMMs: the list is empty",
    "m,n,k\n-4,1,8\n": ":2: m is '-4'; " + SIZES,
    "m,n,k\n4,0,8\n": ":2: n is '0'; " + SIZES,
    "m,n,k\n4,1,8\n4,1,8.0\n": ":3: k is '8.0'; " + SIZES,
    "m,n,k\n4,1,\n": ":2: k is ''; " + SIZES,
    "m,n,k\n4,1,2147483648\n": ":2: k is '2147483648'; " + SIZES,
    "m,n,k\n4,1,\u0664\n": ":2: k is '\u0664'; " + SIZES,
    "m,n,k,count\n4,1,8,1e9\n": ":2: count is '1e9'; " + SIZES,
    "m,n,k,size\n4,1,8,9\n": ":1: no such column: 'size'; " + NAMES,
    "m,n,k,cuont\n4,1,8,9\n": "did you mean count?",
    "m n k\n4 1 8\n": ":1: no such column: 'm n k'; " + NAMES,
    "4,1,8\n": ":1: no such column: '4'; " + NAMES,
    "m,n,k,N\n4,1,8,9\n": ":1: the column n comes twice",
    "m,n,k,weight,weight_id\n4,1,8,9,9\n": ":1: the column weight comes twice",
    "m,k\n4,8\n": ":1: the column n is missing; needed: m, n, k",
    "m,n,k\n4,1\n": ":2: expected 3 cells, got 2",
    "m,n,k\n4,1,8,9\n": ":2: expected 3 cells, got 4",
    'm,n,k\n"4,1,8\n': ":2: not CSV: unexpected end of data",
    "m,n,k,op\n4,1,8,relu\n": ":2: op is 'relu'; allowed: gemm",
    "m,n,k,dtype\n4,1,8,fp8\n": ":2: dtype is 'fp8'; allowed: fp32, fp16, bf16",
    "m,n,k,weight\n4,1,8,w\n8,1,8,w\n": ":3: weight 'w' is 8 x 8 here and 4 x 8 before: give it another name",
    "m,n,k,group,input\n4,1,8,a,x\n4,1,9,b,x\n2,1,9,b,x\n4,1,8,b,x\n": ":5: input 'x' has k=8 here and k=9 before",
    "m,n,k,group\n4,1,8,a\n4,1,8,b\n4,1,8,a\n": ":4: group 'a' comes again behind another one",
    "m,n,k,group\n4,1,8,a\n4,1,8,\n": ":3: some rows have a group and some have none",
    "m,n,k,group\n4,1,8,\n4,1,8,a\n": ":3: some rows have a group and some have none",
    "{}": ":1: the column m is missing",
    '{"m": 64, "n": 1, "k": 8}\n\n{"m": 64, "n": 1}\n': ":3: the column k is missing",
    '{"m": 64, "n": 1, "k": 8}\n[]\n': ":2: expected an object such as",
    '{"m": 64, "n": 1, "k": 8} {"m": 64}\n': ":1: not JSON",
    '[{"m": ' + "9" * 5000 + "}]": ": not JSON: a number with thousands of digits",
    "[1]": ": row 1: expected an object",
    "[{}]": ": row 1: the column m is missing",
    '[{"m": 4, "n": 1, "k": 8}, {"m": 4, "n": 1, "k": 8.0}]': ": row 2: k is '8.0'; " + SIZES,
    '[{"m": 4, "n": 1, "k": true}]': ": row 1: k is 'True'; " + SIZES,
    '[{"m": 4, "n": 1, "k": 8, "count": 0}]': ": row 1: count is '0'; " + SIZES,
    '[{"m": 4, "n": 1, "k": 8, "weight": 0.5}]': ": row 1: weight is '0.5'; allowed: texts and whole numbers",
    '[{"m": 4, "n": 1, "k": 8, "size": 1}]': ": row 1: no such column: 'size'; " + NAMES,
    '[{"m": 4,': ": not JSON: ",
}


@pytest.mark.parametrize("content", WRONG)
def test_a_wrong_list_is_refused_at_its_place(content: str, tmp_path: Path) -> None:
    path = tmp_path / "gemms"
    path.write_bytes(content.encode())
    with pytest.raises(DataError) as caught:
        read_gemm_list(path)
    message = str(caught.value)
    assert WRONG[content] in message
    assert message.startswith(f"{path}:")
    assert "\n" not in message


def test_other_bytes_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "gemms"
    path.write_bytes(b"m,n,k\n4,1,8\n\xff,1,8\n")
    with pytest.raises(DataError, match=":3: not UTF-8; save the file as CSV UTF-8"):
        read_gemm_list(path)


def test_damaged_and_huge_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gemms"
    path.write_bytes(gzip.compress(PLAIN.encode())[:-12])
    with pytest.raises(DataError, match="gemms: damaged gzip, or cut short"):
        read_gemm_list(path)
    path.write_bytes(gzip.compress(b"#" * (9 << 20)))
    with pytest.raises(DataError, match="gemms: over 8 MiB, unpacked"):
        read_gemm_list(path)


def test_pipes_and_huge_files_are_refused_soon(tmp_path: Path) -> None:
    pipe, huge = tmp_path / "pipe", tmp_path / "huge"
    os.mkfifo(pipe)
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    with limited(5.0, 512 << 20):
        with pytest.raises(DataError, match="cannot be read: a named pipe, not a regular file"):
            read_gemm_list(pipe)
        with pytest.raises(DataError, match="huge: over 8 MiB"):
            read_gemm_list(huge)


def test_rows_and_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gemms"
    path.write_text("m,n,k\n" + "".join(f"{m},1,8\n" for m in range(1, 1_002)))
    with pytest.raises(DataError, match=":1002: over 1,000 different sizes"):
        read_gemm_list(path)
    monkeypatch.setattr(gemm_list, "MOST_ROWS", 1_000)
    path.write_text("m,n,k\n" + "4,1,8\n" * 1_001)
    with pytest.raises(DataError, match=":1002: over 1,000 rows; equal rows can be one row with a count"):
        read_gemm_list(path)


names = st.text(st.characters(codec="utf-8", exclude_characters='#"\r\n,;\t\x00'), max_size=5).map(str.strip)


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(st.tuples(st.integers(1, LARGEST), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), names)),
    delimiter=st.sampled_from(",;\t"),
)
def test_what_is_written_is_read(
    rows: list[tuple[int, int, int, int, str]], delimiter: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    numbered = [(*row[:4], f"{number}{row[4]}") for number, row in enumerate(rows)]
    lines = [("m", "n", "k", "count", "weight"), *numbered]
    path = tmp_path_factory.getbasetemp() / "written.csv"
    path.write_bytes("".join(delimiter.join(map(str, line)) + "\n" for line in lines).encode())
    if not rows:
        with pytest.raises(DataError, match="only a header"):
            read_gemm_list(path)
        return
    assert read_gemm_list(path) == tuple(ListedGemm(*row[:4], None, row[4], "") for row in numbered)


@pytest.mark.parametrize(
    ("content", "place"),
    [('[{"m": 8, "m": 16, "n": 1, "k": 8}]', ""), ('{"m": 8, "m": 16, "n": 1, "k": 8}\n', ":1")],
)
def test_a_key_twice_in_an_object_is_refused(content: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(content)
    with pytest.raises(DataError, match=f"list.json{place}: the key m comes twice in one object"):
        read_gemm_list(path)
