"""Open files of other programs, write files atomically, and reserve disk space.

Every reader opens files with `open_regular`. A named pipe would block it, and a device might never end.

Extending a file allocates no blocks. If a tmpfs is full, the first write to a memory mapping of such a file raises
SIGBUS, which ends the process. `allocate` makes the file system allocate the blocks, and raises OSError if it cannot.

    with Reserve(folder):           # RunError: names the folder and the reason
        ...                         # another program may fill the disk; these bytes stay allocated
    # the bytes are free again, and the final manifest fits

The file of a `Reserve` has no name, so that the system deletes it however the process ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from launchopt.errors import ConfigError, DataError, RunError, explained, nearest, one_line

JsonObject = dict[str, Any]
RESERVE_BYTES = 4 << 20  # twice the files of hundreds of repeats, since old and new ones exist together
JSON_DEPTH_MAX = 50
JSON_BYTES_MAX = 8 << 20  # manifests and calibrations have less than 1 MiB; Python's objects take up to 25 times that
_CANNOT_ALLOCATE = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}  # errors of file systems that cannot allocate blocks


def reason(error: OSError | ValueError) -> str:
    """Return the system's short text for an error number; without a number, the text of the error."""
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegularError(OSError):
    """A path at which there is a pipe, a socket or a device, where a regular file is expected."""


def user_path(key: str, text: str) -> Path:
    """Return the path of a file that a user typed as the setting `key`; ConfigError for an empty one.

    A shell leaves `~` as it is behind a `=`.
    """
    if not text:
        raise ConfigError(key, text, f"must name a file: {key}=FILE")
    return Path(os.path.expanduser(text))  # noqa: PTH111  # Path.expanduser() raises for an unknown user


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes. Raise OSError for anything else, without waiting."""
    try:
        _require_regular(path, path.stat())  # first: to open a device can have an effect
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError:
        raise NotRegularError("a path with a NUL character") from None
    try:
        _require_regular(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def is_there(path: Path) -> bool:
    """Return whether there is a file, or a folder that can be listed; DataError if the system does not let us look."""
    try:
        if path.is_dir():
            os.scandir(path).close()
        return path.exists()
    except OSError as error:
        raise DataError(path, None, f"cannot be read: {reason(error)}") from None


def require_replaceable(path: Path) -> None:
    """Raise OSError if there is anything but a regular file at `path`. A path that cannot be looked at passes."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return
    _require_regular(path, found)


def _require_regular(path: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "a special file")
        raise NotRegularError(f"{kind}, not a regular file")


def read_bytes(path: Path, most_bytes: int = JSON_BYTES_MAX) -> bytes:
    """Return the content of a regular file; OSError if it cannot be read, ValueError above `most_bytes`."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"over {most_bytes >> 20} MiB")
    return content


def read_text(path: Path) -> str:
    """Return a UTF-8 text, as `read_bytes` does; also ValueError for other bytes."""
    return read_bytes(path).decode("utf-8")


def allocate(file: int, size: int) -> None:
    """Allocate `size` bytes of the file with descriptor `file`; OSError if the file system has fewer."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in _CANNOT_ALLOCATE:
            raise


class Reserve:
    """`size` bytes in `folder`, allocated until they are released. A context manager; RunError if they do not fit."""

    def __init__(self, folder: Path, size: int = RESERVE_BYTES) -> None:
        try:
            with contextlib.ExitStack() as files:
                self._file = files.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))
                allocate(self._file.fileno(), size)
                self._files, self._size = files.pop_all(), size
        except OSError as error:
            raise RunError(f"{folder} cannot be written to: {reason(error)}") from None

    def grow(self, size: int) -> None:
        """Allocate `size` bytes in all, if the disk has them and they are not released."""
        if size > self._size and not self._file.closed:
            with contextlib.suppress(OSError):
                allocate(self._file.fileno(), size)
                self._size = size

    def release(self) -> None:
        """Free the bytes. A second call does nothing."""
        self._files.close()

    def __enter__(self) -> Reserve:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_MOST_OF_A_NAME = 200  # bytes of a name that a temporary name repeats; a file system allows 255 in all
_TEMPORARY = re.compile(r"\.launchopt-(.+)\.(?:\d{1,10}|json|gz)\.tmp|\.launchopt-.+\.(part)\.tmp")
_BEGINNINGS = {".parquet": b"PAR1", ".part.tmp": b"PAR1", "part": b"PAR1", ".json": b"{", ".gz": b"\x1f\x8b"}


def as_utf8(path: Path | str) -> str:
    """Return a path as text that a UTF-8 file can hold: a byte that is none becomes `\\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def temporary_for(path: Path, kind: str = "") -> Path:
    """Return the hidden name that `path` has until it is complete. kind: of several files for one path."""
    name = os.fsdecode(os.fsencode(path.name)[-_MOST_OF_A_NAME:])
    return path.with_name(f".launchopt-{name}.{kind or os.getpid()}.tmp")


def is_own_temporary(path: Path) -> bool:
    """Return whether this program left `path` unfinished: by its name, and by how the file begins."""
    if (name := _TEMPORARY.fullmatch(path.name)) is None or path.is_symlink():
        return False
    beginning = next((each for suffix, each in _BEGINNINGS.items() if (name[1] or name[2]).endswith(suffix)), None)
    try:
        with open_regular(path) as file:
            return beginning is not None and beginning.startswith(file.read(len(beginning)))
    except OSError:
        return False


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path beside `path`, then rename that file to `path`.

    A reader sees the previous file or the complete new one. Errors of `write` pass through, and the temporary file is
    deleted.
    """
    temporary = temporary_for(path)
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save_result(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file of a run atomically; RunError with folder, file and reason if the disk refuses it."""
    try:
        write_atomically(path, write)
    except OSError as error:
        raise RunError(f"{path.parent}: {path.name} cannot be written: {reason(error)}") from None


def save_text(path: Path, text: str) -> None:
    """Write the file that the user named, atomically and as UTF-8; DataError if the disk refuses it."""
    if "\0" in str(path):
        raise DataError(path, None, "cannot be written (a path with a NUL character)")
    try:
        require_replaceable(path)
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({reason(error)})") from None


def save_json(path: Path, content: object) -> None:
    """Write `content` as indented JSON, like `save_text`."""
    save_text(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path, most_bytes: int = JSON_BYTES_MAX) -> Any:
    """Return the content of a JSON file that another program may have made.

    OSError: the file cannot be read. ValueError: it is not JSON, is nested too deeply, or has more than `most_bytes`.
    `traces.json_stream` reads traces, which may have gigabytes.
    """
    return json_of(read_bytes(path, most_bytes))


class RepeatedKeyError(ValueError):
    """An object of a JSON file has a key twice: readers of JSON differ in which value they take."""


def without_repeats(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Return the object of these keys and values; RepeatedKeyError for a key that comes twice. For `json.loads`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        again = next(key for at, key in enumerate(keys) if key in keys[:at])
        raise RepeatedKeyError(f"the key {one_line(again, 60)} comes twice in one object")
    return found


def json_of(content: bytes) -> Any:
    """Return what JSON says; ValueError as for `read_json`."""
    try:
        found = json.loads(content, object_pairs_hook=without_repeats)
    except RepeatedKeyError:
        raise
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except ValueError:  # the only other one: Python's limit of the digits of a whole number
        raise ValueError("a number with thousands of digits") from None
    return _sound(found, 0)


def _sound(value: Any, depth: int) -> Any:
    """Return a JSON value without halves of surrogate pairs, which nothing can print; ValueError if deep."""
    if depth > JSON_DEPTH_MAX:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return {_sound(key, depth): _sound(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_sound(each, depth + 1) for each in value]
    if isinstance(value, str) and not value.isascii():
        return value.encode(errors="replace").decode()
    return value


def absent(folder: Path, allowed: str = "", meant: Sequence[str] = ()) -> str:
    """Return the problem of a folder that does not exist, or is a file.

    It proposes `meant`, or similar names beside the folder.
    """
    if os.path.lexists(folder) and not meant:
        return explained("not a folder", allowed)
    try:
        beside = [each.name for each in folder.parent.iterdir()]
    except OSError:
        beside = []
    near = [shlex.quote(str(folder.parent / each)) for each in nearest(folder.name, beside)]
    return explained("no such folder", allowed, meant or near)
