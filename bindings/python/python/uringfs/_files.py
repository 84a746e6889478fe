"""Files with a cursor, as `open` returns them: raw, buffered and text."""

from __future__ import annotations

import errno
import io
import os
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from uringfs._uringfs import File


#: The most bytes of an append.
MAX_APPEND = 1 << 30


class RawFile(io.RawIOBase):
    """A file with a cursor and without a buffer. `Volume.open` returns it with `buffering=0`.

    The calls that end in `_at` leave the cursor where it is, and any threads may use them at once.
    """

    def __init__(self, file: File, mode: str) -> None:
        """Wraps a file. `mode` is one of `open` without "b" and "t"."""
        super().__init__()
        #: The file, without the cursor.
        self.file = file
        #: The path that the file was opened with.
        self.name = file.path
        #: The mode, as that of `io.FileIO`.
        self.mode = {"w+": "rb+"}.get(mode, mode.replace("+", "") + "b" + "+" * mode.count("+"))
        self._reads = "r" in mode or "+" in mode
        self._writes = mode != "r"
        self._appends = "a" in mode
        self._position = file.size if self._appends else 0
        # Bound here, so that these calls cost no frame of Python.
        self.readinto_at = file.readinto_at
        self.read_at = file.read_at
        self.write_at = file.write_at
        self.read_ranges = file.read_ranges

    def readable(self) -> bool:
        self._check()
        return self._reads

    def writable(self) -> bool:
        self._check()
        return self._writes

    def seekable(self) -> bool:
        self._check()
        return True

    def fileno(self) -> int:
        what = "a file of a volume has no descriptor; to make it durable, flush it and call sync of the raw file"
        raise io.UnsupportedOperation(what)

    def readinto(self, buffer: Buffer, /) -> int:
        self._check_readable()
        read = self.file.readinto_at(buffer, self._position)
        self._position += read
        return read

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        self._check_readable()
        data = self.file.read_at(size, self._position)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        self._check_readable()
        parts = []
        # Again until there is nothing: the file may grow meanwhile.
        while left := max(self.file.size - self._position, 0):
            part = self.file.read_at(left, self._position)
            if not part:
                break
            self._position += len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, data: Buffer, /) -> int:
        self._check_writable()
        if self._appends:
            return self._append(data)
        written = self.file.write_at(data, self._position)
        self._position += written
        return written

    def _append(self, data: Buffer) -> int:
        with memoryview(data) as view, view.cast("B") as view:
            for at in range(0, view.nbytes, MAX_APPEND):
                part = view[at : at + MAX_APPEND]
                self._position = self.file.append(part) + part.nbytes
            return view.nbytes

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check()
        match whence:
            case os.SEEK_SET:
                target = offset
            case os.SEEK_CUR:
                target = self._position + offset
            case os.SEEK_END:
                target = self.file.size + offset
            case os.SEEK_DATA:
                target = self.file.seek_data(offset)
            case os.SEEK_HOLE:
                target = self.file.seek_hole(offset)
            case _:
                raise ValueError(f"whence is {whence}, which is no way to seek")
        if target < 0:
            raise OSError(errno.EINVAL, f"position {target} is before the beginning of the file", self.name)
        self._position = target
        return target

    def tell(self) -> int:
        self._check()
        return self._position

    def truncate(self, size: int | None = None, /) -> int:
        self._check_writable()
        size = self._position if size is None else size
        if size < 0:
            raise OSError(errno.EINVAL, f"a file cannot have {size} bytes", self.name)
        self.file.truncate(size)
        return size

    def sync(self, *, data_only: bool = False) -> None:
        """Makes all writes durable. `flush` a buffered file before; this is its `raw.sync`."""
        self._check()
        self.file.sync(data_only=data_only)

    def close(self) -> None:
        try:
            super().close()
        finally:
            # Missing if the constructor has failed.
            if (file := getattr(self, "file", None)) is not None:
                file.close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on a closed file")

    def _check_readable(self) -> None:
        self._check()
        if not self._reads:
            raise io.UnsupportedOperation("not readable")

    def _check_writable(self) -> None:
        self._check()
        if not self._writes:
            raise io.UnsupportedOperation("not writable")

    def __repr__(self) -> str:
        state = " [closed]" if self.closed else ""
        return f"<uringfs.RawFile name={self.name!r} mode={self.mode!r}{state}>"


class Mode:
    """A mode of `open`, checked as `open` does."""

    def __init__(self, text: str) -> None:
        letters = set(text)
        kinds = letters & set("rwxa")
        if letters - set("rwxa+bt") or len(letters) != len(text):
            raise ValueError(f"invalid mode: {text!r}")
        if len(kinds) != 1:
            raise ValueError("must have exactly one of create/read/write/append mode")
        if {"b", "t"} <= letters:
            raise ValueError("can't have text and binary mode at once")
        self.binary = "b" in letters
        self.updates = "+" in letters
        self.kind = kinds.pop()

    @property
    def raw(self) -> str:
        """The mode of the raw file."""
        return self.kind + ("+" if self.updates else "")

    def options(self) -> dict[str, bool]:
        """How the file is opened."""
        return {
            "read": self.kind == "r" or self.updates,
            "write": self.kind != "r" or self.updates,
            "create": self.kind in "wa",
            "exclusive": self.kind == "x",
            "truncate": self.kind == "w",
        }


def check_arguments(
    mode: Mode,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> None:
    """Refuses the arguments that `open` refuses, before a file is opened: that may create or truncate it."""
    if not isinstance(buffering, int):
        raise TypeError(f"buffering is {buffering!r}, not an integer")
    if mode.binary:
        if (encoding, errors, newline) != (None, None, None):
            raise ValueError("binary mode takes no encoding, errors or newline argument")
    elif buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    else:
        # Takes the same arguments as the text file itself.
        io.TextIOWrapper(io.BytesIO(), encoding, errors, newline)


def wrap(
    file: File,
    mode: Mode,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> IO[Any]:
    """The raw, buffered or text file that `open` returns for these arguments, which are checked."""
    raw = RawFile(file, mode.raw)
    if buffering == 0:
        return cast("IO[Any]", raw)
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    if mode.updates:
        buffered: Any = io.BufferedRandom(raw, size)
    elif mode.kind == "r":
        buffered = io.BufferedReader(raw, size)
    else:
        buffered = io.BufferedWriter(raw, size)
    if mode.binary:
        return cast("IO[Any]", buffered)
    text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode.raw  # type: ignore[misc]
    return text
