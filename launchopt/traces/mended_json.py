r"""Read JSON that other tools wrote with single tokens that JSON does not allow.

Profilers write such tokens into metadata: `N/A`, `NaN` and `Infinity` for a number that they lack, bytes of a name that
are not UTF-8, raw line ends in a text, `\x`. A parser refuses the whole file for one of them. `MendedStream` replaces
each, and counts them:

    a bare token that JSON does not know, in place of a value  null
    a number with an exponent of more than six digits          null
    nothing in place of a value, as in {"a": }                 null
    a comma before ] or }                                      a space
    control characters within a text                           a space
    a backslash that starts no escape of JSON                  two backslashes
    bytes that are not UTF-8                                   U+FFFD

Mistakes of structure, such as a quote within a text, stay: the parser refuses the file.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from launchopt.errors import one_line
from launchopt.traces.json_stream import JsonStream

TOKEN_BYTES_MAX = 64  # a longer bare token is no value: the parser refuses it
_HELD_BYTES_MAX = 4096  # bytes after the last bracket or comma that wait for the next chunk
_SHOWN_CHARACTERS = 20

_NUMBER = rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,6})?"
_PART = rb'[^\s,:{}\[\]"]'  # a byte of a bare token
_NOT_JSON = re.compile(rb"(?<!%b)(?!(?:true|false|null|%b)(?!%b))%b+" % (_PART, _NUMBER, _PART, _PART))
_LAST_COMMA = re.compile(rb",(?=\s*[\]}])")
_NO_VALUE = re.compile(rb":(?=\s*[,}])")
_CONTROL = re.compile(rb"[\x00-\x1f]+")
_NO_ESCAPE = re.compile(rb"\\(?![/bfnrt]|u[0-9a-fA-F]{4})")
_ODD = re.compile(rb"[\x00-\x1f\\]")
_UNFINISHED = re.compile(rb"(?:\\(?:u[0-9a-fA-F]{0,3})?|[\xc0-\xff][\x80-\xbf]{0,2})\Z")  # at the end of half a text

_Edit = tuple[int, int, bytes]  # from, to, what to write instead


class MendedStream(JsonStream):
    """A `JsonStream` that replaces tokens as the module says."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.mended = 0  # number of replaced tokens
        self.first = ""  # the first of them, and its place in the file
        self._held = b""  # read, and to be mended together with the next chunk
        self._done_bytes = 0
        self._starts_in_text = False

    def _next(self) -> bytes:
        while True:
            raw = super()._next()
            mended = self._mend(self._held + raw, is_last=not raw)
            if mended or not raw:
                return mended

    def _mend(self, data: bytes, *, is_last: bool) -> bytes:
        """Return `data` mended, less what waits for the next chunk."""
        # Escapes of a backslash and of a quote are masked in place. Every quote that remains starts or ends a text.
        masked = data.replace(rb"\\", b"xx").replace(rb"\"", b"xx")
        parts = masked.split(b'"')
        ends_in_text = self._starts_in_text ^ (len(parts) % 2 == 0)
        kept = len(data) - (0 if is_last else _unfinished(parts[-1], ends_in_text))
        first = 0 if self._starts_in_text else 1
        # Both have the length of the data. In one, texts consist of quotes; in the other, all but texts is blank.
        values = b'"'.join(_filled(parts, first, b'"'))
        texts = b'"'.join(_filled(parts, 1 - first, b" ")) if _ODD.search(b'"'.join(parts[first::2])) else b""
        edits = sorted(edit for edit in (*_edits_of_values(values), *_edits_of_texts(texts)) if edit[0] < kept)
        data, self._held = data[:kept], data[kept:]
        for start, end, _ in edits:
            self._count(data[start:end], start)
        data, length = self._utf8(_applied(data, edits)), len(data)
        self._done_bytes += length
        self._starts_in_text = ends_in_text
        return data

    def _count(self, token: bytes, start: int) -> None:
        self.mended += 1
        if self.mended == 1:
            shown = one_line(token.decode(errors="backslashreplace") if token.strip() else repr(token)[2:-1])
            self.first = f"{shown[:_SHOWN_CHARACTERS]} at byte {self._done_bytes + start:,}"

    def _utf8(self, data: bytes) -> bytes:
        """Return `data` with U+FFFD in place of bytes that are not UTF-8. Bytes in a row count once."""
        if data.isascii():
            return data
        last_end = -1

        def replaced(error: UnicodeError) -> tuple[str, int]:
            nonlocal last_end
            assert isinstance(error, UnicodeDecodeError)
            if error.start != last_end:
                self._count(data[error.start : error.end], error.start)
            last_end = error.end
            return "\ufffd", error.end

        codecs.register_error("launchopt.mended", replaced)
        return data.decode(errors="launchopt.mended").encode()


def _filled(parts: list[bytes], first: int, byte: bytes) -> list[bytes]:
    """Return `parts` with every second one, from `first`, replaced by as many of `byte`."""
    filled = parts.copy()
    filled[first::2] = [byte * len(part) for part in parts[first::2]]
    return filled


def _unfinished(tail: bytes, is_text: bool) -> int:
    """Return the length of the end of `tail` that the next chunk may continue."""
    if is_text:
        found = _UNFINISHED.search(tail[-6:])
        return len(found[0]) if found else 0
    tail = tail[-_HELD_BYTES_MAX:]
    at = max(tail.rfind(each) for each in (b",", b":", b"[", b"]", b"{", b"}"))
    if at < 0:
        return len(tail) if len(tail) < _HELD_BYTES_MAX else 0
    return len(tail) - at - (tail[at : at + 1] in (b"]", b"{", b"}"))


def _edits_of_values(values: bytes) -> list[_Edit]:
    edits = [(found.start(), found.end(), b" ") for found in _LAST_COMMA.finditer(values)]
    edits += [(found.start(), found.end(), b":null") for found in _NO_VALUE.finditer(values)]
    for found in _NOT_JSON.finditer(values):
        start, end = found.span()
        before = values[max(0, start - _HELD_BYTES_MAX) : start].rstrip()[-1:]
        after = values[end : end + _HELD_BYTES_MAX].lstrip()[:1]
        if end - start <= TOKEN_BYTES_MAX and before in (b",", b":", b"[") and after in (b",", b"}", b"]"):
            edits.append((start, end, b"null"))
    return edits


def _edits_of_texts(texts: bytes) -> list[_Edit]:
    edits = [(found.start(), found.end(), b" ") for found in _CONTROL.finditer(texts)]
    return edits + [(found.start(), found.end(), rb"\\") for found in _NO_ESCAPE.finditer(texts)]


def _applied(data: bytes, edits: list[_Edit]) -> bytes:
    if not edits:
        return data
    pieces, at = [], 0
    for start, end, text in edits:
        pieces += [data[at:start], text]
        at = end
    return b"".join([*pieces, data[at:]])
