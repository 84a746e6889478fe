"""Paths in a volume, with the calls of `pathlib.Path`."""

from __future__ import annotations

import fnmatch
import os
from functools import total_ordering
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, TypeAlias, Union

from uringfs._entries import DirEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from uringfs._volume import Volume

#: A name in a volume.
StrPath: TypeAlias = Union[str, "os.PathLike[str]", DirEntry, "Path"]


@total_ordering
class Path:
    """A path in a volume, with the calls of `pathlib.Path`.

    >>> import tempfile, uringfs
    >>> folder = tempfile.TemporaryDirectory()
    >>> volume = uringfs.Volume.create(f"{folder.name}/disk.img", size=64 << 20)
    >>> logs = volume / "logs"
    >>> logs.mkdir()
    >>> (logs / "first").write_text("hello")
    5
    >>> [path.name for path in logs.iterdir()]
    ['first']

    It is no `os.PathLike`: the builtin `open` would open the file of the same name outside of the volume.
    """

    __slots__ = ("_pure", "_text", "volume")

    def __init__(self, volume: Volume, *segments: StrPath) -> None:
        #: The volume.
        self.volume = volume
        self._pure = PurePosixPath("/", *(volume.text_of(segment) for segment in segments))
        self._text = str(self._pure)

    def _with(self, pure: PurePosixPath) -> Path:
        return Path(self.volume, pure)

    # Without the volume.

    @property
    def name(self) -> str:
        """The last name."""
        return self._pure.name

    @property
    def stem(self) -> str:
        """The last name without its suffix."""
        return self._pure.stem

    @property
    def suffix(self) -> str:
        """The suffix of the last name."""
        return self._pure.suffix

    @property
    def suffixes(self) -> list[str]:
        """All suffixes of the last name."""
        return self._pure.suffixes

    @property
    def parts(self) -> tuple[str, ...]:
        """The names, with the root."""
        return self._pure.parts

    @property
    def parent(self) -> Path:
        """The directory."""
        return self._with(self._pure.parent)

    @property
    def parents(self) -> list[Path]:
        """The directory, and those above it."""
        return [self._with(parent) for parent in self._pure.parents]

    def joinpath(self, *segments: StrPath) -> Path:
        """The path of a name below this one."""
        return self._with(self._pure.joinpath(*(self.volume.text_of(segment) for segment in segments)))

    def __truediv__(self, segment: StrPath) -> Path:
        return self.joinpath(segment)

    def with_name(self, name: str) -> Path:
        """The path with another last name."""
        return self._with(self._pure.with_name(name))

    def with_stem(self, stem: str) -> Path:
        """The path with another last name, and the same suffix."""
        return self._with(self._pure.with_stem(stem))

    def with_suffix(self, suffix: str) -> Path:
        """The path with another suffix."""
        return self._with(self._pure.with_suffix(suffix))

    def relative_to(self, other: StrPath) -> PurePosixPath:
        """The part of the path below another one."""
        return self._pure.relative_to(Path(self.volume, other)._pure)

    def is_relative_to(self, other: StrPath) -> bool:
        """True if the other path is this one, or above it."""
        return not self._is_elsewhere(other) and self._pure.is_relative_to(Path(self.volume, other)._pure)

    def _is_elsewhere(self, other: StrPath) -> bool:
        """True for a path of another volume."""
        return isinstance(other, (Path, DirEntry)) and other.volume is not self.volume

    def match(self, pattern: str) -> bool:
        """True if the path matches a pattern."""
        return self._pure.match(pattern)

    def as_posix(self) -> str:
        """The text."""
        return self._text

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"uringfs.Path({self._text!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self.volume is other.volume and self._pure == other._pure

    def __lt__(self, other: Path) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self._pure < other._pure

    def __hash__(self) -> int:
        return hash((id(self.volume), self._pure))

    # Attributes.

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """The attributes."""
        return self.volume.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self) -> os.stat_result:
        """The attributes; those of a symbolic link itself."""
        return self.stat(follow_symlinks=False)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """True if the path leads to something."""
        return self.volume._mode(self, follow_symlinks=follow_symlinks) != 0

    def is_file(self) -> bool:
        """True if it leads to a regular file."""
        return self.volume.isfile(self)

    def is_dir(self) -> bool:
        """True if it leads to a directory."""
        return self.volume.isdir(self)

    def is_symlink(self) -> bool:
        """True if it is a symbolic link."""
        return self.volume.islink(self)

    def samefile(self, other: StrPath) -> bool:
        """True if the other path leads to the same file."""
        return not self._is_elsewhere(other) and self.stat().st_ino == self.volume.stat(other).st_ino

    def chmod(self, mode: int) -> None:
        """Changes the permissions."""
        self.volume.chmod(self, mode)

    # Content.

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Opens the file, as `Volume.open`."""
        return self.volume.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        """The content."""
        with self.volume.open(self, "rb", 0) as file:
            return file.readall()

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """The content as text."""
        with self.volume.open(self, "r", encoding=encoding, errors=errors) as file:
            return file.read()

    def write_bytes(self, data: Any) -> int:
        """Replaces the content."""
        # Before the file is truncated: this refuses everything but a buffer.
        with memoryview(data) as view, self.volume.open(self, "wb", 0) as file:
            return file.write(view)

    def write_text(
        self,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        """Replaces the content by text."""
        if not isinstance(data, str):
            raise TypeError(f"data is of type {type(data).__name__}, not str")
        with self.volume.open(self, "w", encoding=encoding, errors=errors, newline=newline) as file:
            return file.write(data)

    # Names.

    def touch(self, mode: int = 0o644, exist_ok: bool = True) -> None:
        """Creates the file, or sets its times to now."""
        try:
            self.volume.open_file(self, "x", permissions=mode).close()
        except FileExistsError:
            if not exist_ok:
                raise
            self.volume.utime(self)

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        """Creates the directory; with `parents`, those above it, too."""
        if parents:
            self.volume.makedirs(self, mode, exist_ok)
            return
        try:
            self.volume.mkdir(self, mode)
        except FileExistsError:
            if not (exist_ok and self.is_dir()):
                raise

    def rmdir(self) -> None:
        """Removes the empty directory."""
        self.volume.rmdir(self)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the file."""
        try:
            self.volume.remove(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: StrPath) -> Path:
        """Renames it, and returns the new path. Replaces what is there."""
        self.volume.rename(self, target)
        return Path(self.volume, target)

    def replace(self, target: StrPath) -> Path:
        """Renames it as `rename` does, and returns the new path."""
        return self.rename(target)

    def symlink_to(self, target: StrPath) -> None:
        """Creates a symbolic link here."""
        self.volume.symlink(target, self)

    def hardlink_to(self, target: StrPath) -> None:
        """Makes this a further name of a file."""
        self.volume.link(target, self)

    def readlink(self) -> PurePosixPath:
        """The text of the symbolic link."""
        return PurePosixPath(self.volume.readlink(self))

    # Listings.

    def iterdir(self) -> Iterator[Path]:
        """The paths in the directory."""
        for name in self.volume.listdir(self):
            yield self / name

    def walk(
        self,
        top_down: bool = True,
        on_error: Callable[[OSError], object] | None = None,
        follow_symlinks: bool = False,
    ) -> Iterator[tuple[Path, list[str], list[str]]]:
        """The directories at and below this one, with their names. Links are files, unless `follow_symlinks`."""
        left: list[Path | tuple[Path, list[str], list[str]]] = [self]
        while left:
            path = left.pop()
            if isinstance(path, tuple):
                yield path
                continue
            try:
                folders, files = self.volume._names_in(path, follow_symlinks=follow_symlinks)
            except OSError as error:
                if on_error is not None:
                    on_error(error)
                continue
            if top_down:
                yield path, folders, files
            else:
                left.append((path, folders, files))
            left.extend(path / name for name in reversed(folders))

    def glob(self, pattern: str) -> Iterator[Path]:
        """The paths below this one that match a relative pattern of shell names; `**` stands for any directories."""
        parts = PurePosixPath(pattern).parts
        if not parts or pattern.startswith("/"):
            raise ValueError(f"{pattern!r} is no relative pattern")
        seen = set()
        for path in self._select(parts):
            if path not in seen:
                seen.add(path)
                yield path

    def rglob(self, pattern: str) -> Iterator[Path]:
        """The paths at any depth below this one that match a relative pattern: `glob` with `**/` before it."""
        return self.glob(f"**/{pattern}")

    def _select(self, parts: tuple[str, ...]) -> Iterator[Path]:
        if not parts:
            yield self
            return
        first, rest = parts[0], parts[1:]
        if first == "**":
            for directory, _, _ in self.walk():
                if rest or directory != self:
                    yield from directory._select(rest)
            if not rest:
                yield self
            return
        if not any(letter in first for letter in "*?["):
            if (self / first).exists(follow_symlinks=False):
                yield from (self / first)._select(rest)
            return
        if not self.is_dir():
            return
        for name in self.volume.listdir(self):
            if fnmatch.fnmatchcase(name, first):
                yield from (self / name)._select(rest)
