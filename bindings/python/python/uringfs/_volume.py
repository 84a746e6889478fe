"""Volumes: the calls of `os` and `shutil` on names, and `open`."""

from __future__ import annotations

import atexit
import math
import os
import stat
import time
import uuid
import weakref
from typing import IO, TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from uringfs import _uringfs
from uringfs._entries import NOWHERE, DirEntry, ScandirIterator, Statistics, is_directory
from uringfs._files import Mode, RawFile, check_arguments, wrap
from uringfs._path import Path

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator

    from _typeshed import (
        OpenBinaryMode,
        OpenBinaryModeReading,
        OpenBinaryModeUpdating,
        OpenBinaryModeWriting,
        OpenTextMode,
    )

    from uringfs._path import StrPath
    from uringfs._uringfs import File

_Item = TypeVar("_Item")


#: The beginnings of URIs, which name devices that are no files.
_SCHEMES = ("nbd://", "nbd+unix://", "rbd:")


def real_path(path: str | os.PathLike[str]) -> str:
    """The path of a volume's file or device, the same in every folder. A URI stays as it is."""
    text = os.fspath(path)
    return text if text.startswith(_SCHEMES) else os.path.realpath(text)


def _items(items: weakref.WeakSet[_Item]) -> list[_Item]:
    """The items of a set to which other threads add."""
    while True:
        try:
            return list(items)
        except RuntimeError:
            # Another thread has added one meanwhile.
            continue


class Volume(_uringfs.Volume):
    """Files under names, on a block device or in one ordinary file.

    >>> import tempfile, uringfs
    >>> folder = tempfile.TemporaryDirectory()
    >>> uringfs.Volume.create(f"{folder.name}/disk.img", size=64 << 20).close()
    >>> with uringfs.Volume(f"{folder.name}/disk.img") as volume:
    ...     volume.mkdir("/photos")
    ...     volume.listdir()
    ['photos']

    `Volume(path)` opens one that exists, for writing, so that no other process can open it; with `read_only=True`
    for reading, which processes share. `cache_bytes` gives it a page cache of its own instead of the one that all
    volumes of the process share. `discard` passes freed blocks on to the device.

    Names are text, `os.PathLike`, or a `Path` or a `DirEntry` of this package; they begin at the root, with or without
    a slash. Errors are `OSError` with errno and path, such as `FileNotFoundError`. Threads may share a volume.
    """

    _streams: weakref.WeakSet[Any]
    _is_closing: bool
    _real_path: str

    def __new__(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        cache_bytes: int | None = None,
        discard: bool = False,
    ) -> Self:
        volume = super().__new__(cls, path, read_only=read_only, cache_bytes=cache_bytes, discard=discard)
        # Files that `open` has returned: their buffers may have bytes, which are written when they close.
        volume._streams = weakref.WeakSet()
        volume._is_closing = False
        # Resolved at once: the program may change its folder, or a link, later.
        volume._real_path = real_path(path)
        _open_volumes.add(volume)
        return volume

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        size: int | None = None,
        *,
        label: str = "",
        overwrite: bool = False,
    ) -> Self:
        """Creates a volume in a new file of `size` bytes, and opens it.

        The file is filled with zeros, which takes as long as writing it. With `overwrite` the volume may be on a block
        device, or in a file that exists: everything there is lost.
        """
        _uringfs.create(path, size, label, overwrite)
        return cls(path)

    def close(self) -> None:
        """Closes all files, makes all changes durable, and frees the volume for other programs.

        A volume that a program has not closed closes when the program drops it and its files, or when the
        interpreter exits. In the child of a fork nothing happens.
        """
        if self.inherited:
            return
        # Before the streams are listed: `open` then closes what it adds.
        self._is_closing = True
        errors = []
        for stream in _items(self._streams):
            try:
                stream.close()
            except Exception as error:
                errors.append(error)
        try:
            self.close_volume()
        except Exception as error:
            errors.append(error)
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @overload
    def open(
        self,
        path: StrPath,
        mode: OpenTextMode = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        direct: bool = False,
        permissions: int = 0o644,
    ) -> io.TextIOWrapper: ...

    @overload
    def open(  # type: ignore[overload-overlap]
        self,
        path: StrPath,
        mode: OpenBinaryMode,
        buffering: Literal[0],
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        direct: bool = False,
        permissions: int = 0o644,
    ) -> RawFile: ...

    @overload
    def open(
        self,
        path: StrPath,
        mode: OpenBinaryModeUpdating,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        direct: bool = False,
        permissions: int = 0o644,
    ) -> io.BufferedRandom: ...

    @overload
    def open(
        self,
        path: StrPath,
        mode: OpenBinaryModeReading,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        direct: bool = False,
        permissions: int = 0o644,
    ) -> io.BufferedReader: ...

    @overload
    def open(
        self,
        path: StrPath,
        mode: OpenBinaryModeWriting,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        direct: bool = False,
        permissions: int = 0o644,
    ) -> io.BufferedWriter: ...

    @overload
    def open(
        self,
        path: StrPath,
        mode: str,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        direct: bool = False,
        permissions: int = 0o644,
    ) -> IO[Any]: ...

    def open(
        self,
        path: StrPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        direct: bool = False,
        permissions: int = 0o644,
    ) -> Any:
        """Opens a file as the builtin `open` does: text, buffered bytes, or with `buffering=0` a `RawFile`.

        >>> import tempfile, uringfs
        >>> folder = tempfile.TemporaryDirectory()
        >>> volume = uringfs.Volume.create(f"{folder.name}/disk.img", size=64 << 20)
        >>> with volume.open("/list", "w") as file:
        ...     print("one", "two", sep="\\n", file=file)
        >>> with volume.open("/list", "rb") as file:
        ...     list(file)
        [b'one\\n', b'two\\n']

        With `direct`, reads and writes bypass the page cache. `permissions` are those of a new file.
        """
        parsed = Mode(mode)
        check_arguments(parsed, buffering, encoding, errors, newline)
        file = self.open_native(path, direct=direct, permissions=permissions, **parsed.options())
        try:
            stream = wrap(file, parsed, buffering, encoding, errors, newline)
        except BaseException:
            file.close()
            raise
        self._streams.add(stream)
        if self._is_closing:
            # The close in another thread may have listed the streams before.
            stream.close()
            raise ValueError("I/O operation on a closed volume")
        return stream

    def open_file(
        self,
        path: StrPath,
        mode: str = "r",
        *,
        direct: bool = False,
        permissions: int = 0o644,
    ) -> File:
        """Opens a file to be read and written by offset.

        >>> import tempfile, uringfs
        >>> folder = tempfile.TemporaryDirectory()
        >>> volume = uringfs.Volume.create(f"{folder.name}/disk.img", size=64 << 20)
        >>> file = volume.open_file("/data", "w+")
        >>> file.write_at(b"hello", 4096)
        5
        >>> buffer = bytearray(5)
        >>> file.readinto_at(buffer, 4096), bytes(buffer)
        (5, b'hello')
        """
        options = Mode(mode).options()
        return self.open_native(path, direct=direct, permissions=permissions, **options)

    def path(self, path: StrPath = "/") -> Path:
        """A path in this volume, as of pathlib. `volume / "logs"` is `volume.path("logs")`."""
        return Path(self, path)

    def __truediv__(self, path: StrPath) -> Path:
        return Path(self, path)

    def statistics(self) -> Statistics:
        """Space and commits."""
        return Statistics(*self.statistics_values())

    @property
    def uuid(self) -> uuid.UUID:
        """The identity of the volume."""
        return uuid.UUID(bytes=bytes(self.uuid_bytes))

    def scandir(self, path: StrPath = "/") -> ScandirIterator:
        """The entries of a directory, with their types."""
        directory = self.text_of(path)
        entries = self.entries(path)
        return ScandirIterator(DirEntry(self, directory, *entry) for entry in entries)

    def makedirs(self, path: StrPath, mode: int = 0o755, exist_ok: bool = False) -> None:
        """Creates a directory, and those above it that do not exist."""
        text = self.text_of(path)
        head, tail = os.path.split(text.rstrip("/"))
        if head.strip("/") and tail:
            self.create_dir_all(head)
        try:
            self.mkdir(text, mode)
        except FileExistsError:
            if not (exist_ok and self.isdir(text)):
                raise

    def lstat(self, path: StrPath) -> os.stat_result:
        """The attributes of a file, or of a symbolic link itself."""
        return self.stat(path, follow_symlinks=False)

    def exists(self, path: StrPath) -> bool:
        """True if the path leads to something."""
        return self._mode(path) != 0

    def lexists(self, path: StrPath) -> bool:
        """True if the path leads to something, or to a symbolic link that leads nowhere."""
        return self._mode(path, follow_symlinks=False) != 0

    def isfile(self, path: StrPath) -> bool:
        """True if the path leads to a regular file."""
        return stat.S_ISREG(self._mode(path))

    def isdir(self, path: StrPath) -> bool:
        """True if the path leads to a directory."""
        return stat.S_ISDIR(self._mode(path))

    def islink(self, path: StrPath) -> bool:
        """True if the path is a symbolic link."""
        return stat.S_ISLNK(self._mode(path, follow_symlinks=False))

    def getsize(self, path: StrPath) -> int:
        """The size of a file in bytes."""
        return self.stat(path).st_size

    def getmtime(self, path: StrPath) -> float:
        """The time of the last change of a file's content, in seconds since 1970."""
        return self.stat(path).st_mtime

    def samefile(self, first: StrPath, second: StrPath) -> bool:
        """True if both paths lead to the same file."""
        return self.stat(first).st_ino == self.stat(second).st_ino

    def _mode(self, path: StrPath, *, follow_symlinks: bool = True) -> int:
        """Type and permissions of a file; 0 for a path that leads nowhere."""
        try:
            return self.stat(path, follow_symlinks=follow_symlinks).st_mode
        except OSError as error:
            if error.errno not in NOWHERE:
                raise
            return 0

    def unlink(self, path: StrPath) -> None:
        """Removes a file."""
        self.remove(path)

    def replace(self, source: StrPath, target: StrPath) -> None:
        """Renames a file or a directory, and replaces what has the new name."""
        self.rename(source, target)

    def truncate(self, path: StrPath, length: int) -> None:
        """Truncates a file, or extends it by a hole."""
        with self.open_file(path, "r+") as file:
            file.truncate(length)

    def utime(
        self,
        path: StrPath,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
    ) -> None:
        """Sets the times of the last access and the last change of the content; to now without either argument."""
        if times is not None and ns is not None:
            raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
        if times is not None:
            accessed, modified = times
            ns = (_nanoseconds(accessed), _nanoseconds(modified))
        if ns is None:
            ns = (time.time_ns(),) * 2
        self.utime_ns(path, ns)

    def walk(
        self,
        top: StrPath = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """The directories at and below `top` with their names, as `os.walk`."""
        directory = self.text_of(top)
        try:
            folders, files = self._names_in(directory)
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        if topdown:
            yield directory, folders, files
        for name in folders:
            path = os.path.join(directory, name)
            if followlinks or not self.islink(path):
                yield from self.walk(path, topdown, onerror, followlinks)
        if not topdown:
            yield directory, folders, files

    def _names_in(self, path: StrPath, *, follow_symlinks: bool = True) -> tuple[list[str], list[str]]:
        """The names of the directories in a directory, and the other names."""
        kinds = {entry.name: is_directory(entry, follow_symlinks) for entry in self.scandir(path)}
        folders = [name for name, is_folder in kinds.items() if is_folder]
        return folders, [name for name, is_folder in kinds.items() if not is_folder]

    def __repr__(self) -> str:
        state = " [closed]" if self.closed else ""
        return f"<uringfs.Volume {str(self.device_path)!r}{state}>"


def _nanoseconds(seconds: float) -> int:
    """A time in nanoseconds, as `os.utime` rounds it."""
    whole = math.floor(seconds)
    return whole * 10**9 + math.floor((seconds - whole) * 1e9)


#: Those to close when the interpreter exits.
_open_volumes: weakref.WeakSet[Volume] = weakref.WeakSet()


def open_volumes() -> list[Volume]:
    """The volumes that this process has open."""
    return [volume for volume in _items(_open_volumes) if not (volume.closed or volume.inherited)]


def _close_all() -> None:
    """Closes what a program has left open, and the reactor of the main thread."""
    errors = []
    for volume in open_volumes():
        try:
            volume.close()
        except Exception as error:
            errors.append(error)
    _uringfs.drop_reactor()
    if errors:
        raise ExceptionGroup("closing volumes when the interpreter exits", errors)


atexit.register(_close_all)
