"""The files in which Numba keeps compiled code, with a checksum.

Numba raises an error for a file that is empty or cut, and runs machine code that is damaged. Here such a file counts as
absent: the function is compiled again. So does a file that another user has made, since reading it could run code. If a
file cannot be written, for instance to a full disk, the compiled function is used all the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

from numba.core import config
from numba.core.caching import FunctionCache, IndexDataCacheFile

from launchopt.files import open_regular

Function = Any  # of the user; Numba has no type annotations
Signature = Any  # a Numba signature
Context = Any  # Numba's target context
Compiled = Any  # Numba's CompileResult


class CheckedFiles(IndexDataCacheFile):  # type: ignore[misc]  # Numba has no type annotations
    """Numba's index and data files. Each begins with the SHA-256 of Numba's version and of the rest of the file."""

    def _load_index(self) -> dict[Any, str]:
        try:
            stamp, names = self._read(self._index_path)
        except Exception:  # unpickling raises errors of any kind
            return {}
        return names if stamp == self._source_stamp else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._write(self._index_path, (self._source_stamp, overloads))

    def _load_data(self, name: str) -> Any:
        return self._read(self._data_path(name))

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), data)

    def _read(self, path: str) -> Any:
        """Return the content of a file; an OSError or ValueError if it is not as this user wrote it."""
        with open_regular(Path(path)) as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise PermissionError
            content = file.read()
        size = hashlib.sha256().digest_size
        if content[:size] != self._digest(content[size:]):
            raise ValueError("damaged")
        return pickle.loads(content[size:])

    def _write(self, path: str, content: Any) -> None:
        data = self._dump(content)
        with self._open_for_write(path) as file:
            file.write(self._digest(data) + data)

    def _digest(self, data: bytes) -> bytes:
        return hashlib.sha256(self._version.encode() + data).digest()


class CompiledFiles(FunctionCache):  # type: ignore[misc]  # Numba has no type annotations
    """The cache of one function. A file that cannot be read or written is no error.

    RuntimeError if Numba cannot write to the folder `config.CACHE_DIR`. Its other folders are not used: there a file
    would be found again after a change of a function that is compiled into this one.
    """

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        if not Path(self._cache_path).is_relative_to(config.CACHE_DIR):
            raise RuntimeError(f"{config.CACHE_DIR} cannot be written to")
        base = self._impl.filename_base
        self._cache_file = CheckedFiles(self._cache_path, base, self._impl.locator.get_source_stamp())

    def load_overload(self, signature: Signature, context: Context) -> Compiled | None:
        """Return the compiled function from its file; None if there is no such file."""
        with contextlib.suppress(Exception):  # unpickling raises errors of any kind
            return super().load_overload(signature, context)
        return None

    def save_overload(self, signature: Signature, compiled: Compiled) -> None:
        """Write the compiled function to its file, if the disk takes it."""
        with contextlib.suppress(OSError):
            super().save_overload(signature, compiled)
