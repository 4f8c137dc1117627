"""Read the bytes of a JSON file for a streaming parser, with limits on their content.

The file is plain or gzip, detected by its first bytes. `read` returns the JSON in chunks; only one chunk is in memory.
It raises DataError before a hostile or broken file can crash the parser or fill the memory:

    values nested more than DEPTH_MAX deep
    numbers of more than NUMBER_BYTES_MAX characters (yajl, which ijson uses, crashes on thousands of digits)
    a single value of more than VALUE_BYTES_MAX
    more than BLANK_BYTES_MAX of white space in a row
    a gzip stream that ends early

It does not check that the bytes are valid JSON.
"""

from __future__ import annotations

import gzip
import zlib
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

import numpy as np

from launchopt.arrivals.lines import BOM, unreadable
from launchopt.errors import DataError
from launchopt.files import open_regular

DEPTH_MAX = 100  # a Kineto trace is nested 6 deep
NUMBER_BYTES_MAX = 300  # a number that continues in the next chunk can have twice as many characters
VALUE_BYTES_MAX = 16 << 20  # limit of one event or one text; events of a Kineto trace have up to 20 kB
BLANK_BYTES_MAX = 64_000_000
CHUNK_BYTES = 256 << 10
GZIP_MAGIC = b"\x1f\x8b"

_NOT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_NUMBERS_AS_ZEROS = bytes(ord("0") if byte in b"0123456789+-.eE" else byte for byte in range(256))
_LONG_NUMBER = b"0" * (NUMBER_BYTES_MAX + 1)


class JsonStream:
    """A context manager that opens a file and has `read`, as parsers need it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0  # bytes of JSON returned so far, after decompression
        self.chunk = b""  # the last chunk that was returned
        self.is_array = False  # whether the outermost value is an array
        self._depth = 0
        self._in_text = self._at_end = False
        self._backslash = b""  # backslash at the end of the last chunk, which escapes the first byte of the next one
        self._last = b""  # last byte outside texts that is not white space
        self._value_bytes = 0
        self._blank_bytes = 0  # length of the white space at the end of the last chunk and before it

    def __enter__(self) -> JsonStream:
        with ExitStack() as opened:
            try:
                self._file: BinaryIO = opened.enter_context(open_regular(self.path))
                is_gzip = self._file.read(2) == GZIP_MAGIC
                self._file.seek(0)
            except OSError as error:
                raise unreadable(self.path, error) from None
            if is_gzip:
                self._file = cast(BinaryIO, opened.enter_context(gzip.open(self._file)))
            self._first = self._next().removeprefix(BOM)
            self.is_array = self._first.lstrip()[:1] == b"["
            self._close = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close.close()

    def read(self, size: int = -1) -> bytes:
        """Return the next chunk, of any size; b"" at the end, or if `size` is 0. DataError: see the module."""
        if size == 0:
            return b""
        raw, self._first = self._first or self._next(), b""
        self._at_end = not raw
        self._check(raw)
        self.bytes_read += len(raw)
        self.chunk = raw or self.chunk
        return raw

    def _next(self) -> bytes:
        try:
            return self._file.read(CHUNK_BYTES)
        except EOFError:
            raise self.error("the gzip stream ends early: the file was cut short") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self.error(f"the gzip stream is damaged ({error})") from None
        except OSError as error:
            raise unreadable(self.path, error) from None

    @property
    def is_open_array(self) -> bool:
        """True if the file ended after a value of the outermost array, without "]". Chrome's format allows this."""
        between = self._depth == 1 and not self._in_text and self._last in (b"[", b"}", b",")
        return self._at_end and self.is_array and between

    def error(self, problem: str) -> DataError:
        """Return a DataError with the problem and the position in the file."""
        return DataError(self.path, None, f"{problem}; {self.bytes_read:,} bytes of JSON were read before")

    def _check(self, raw: bytes) -> None:
        # After pairs of backslashes are removed, a backslash before a quote always escapes the quote.
        text = (self._backslash + raw).replace(b"\\\\", b"")
        self._backslash = b"\\" if text.endswith(b"\\") else b""
        parts = text.removesuffix(b"\\").replace(b'\\"', b"").split(b'"')
        outside = b'"'.join(parts[self._in_text :: 2])
        is_within_text = self._in_text and len(parts) == 1
        self._count_blanks(outside, len(raw))
        self._in_text ^= len(parts) % 2 == 0
        self._last = outside.rstrip()[-1:] or self._last

        if _LONG_NUMBER in outside.translate(_NUMBERS_AS_ZEROS):
            raise self.error(f"a number of over {NUMBER_BYTES_MAX} characters")
        brackets = np.frombuffer(outside.translate(None, _NOT_BRACKETS), np.uint8)
        # Bits 1 and 2 of { and [ are 01, and those of } and ] are 10, so that a bracket changes the depth by +1 or -1.
        depths = self._depth + np.cumsum(3 - (brackets & 6).astype(np.int64))
        lowest = int(depths.min(initial=self._depth))
        if int(depths.max(initial=0)) > DEPTH_MAX:
            raise self.error(f"values nested over {DEPTH_MAX} deep")
        self._depth = int(depths[-1]) if len(depths) else self._depth
        # An event is an element of the outermost array, or of an array in the outermost object.
        is_within_event = lowest > (1 if self.is_array else 2)
        self._value_bytes = self._value_bytes + len(raw) if is_within_text or is_within_event else 0
        if self._value_bytes > VALUE_BYTES_MAX:
            raise self.error(f"a single value of over {VALUE_BYTES_MAX >> 20} MiB")

    def _count_blanks(self, outside: bytes, size: int) -> None:
        """Raise DataError for too much white space. `outside`: the part of a chunk of `size` bytes outside texts."""
        leading, trailing = (len(outside) - len(stripped) for stripped in (outside.lstrip(), outside.rstrip()))
        if not self._in_text and self._blank_bytes + leading > BLANK_BYTES_MAX:
            raise self.error(f"over {BLANK_BYTES_MAX // 1_000_000} MB of white space in a row")
        self._blank_bytes = trailing + (self._blank_bytes if trailing == size else 0)
