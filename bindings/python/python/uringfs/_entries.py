"""Entries of directories, as `os.scandir` returns them, and the statistics of a volume."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from uringfs._volume import Volume


#: Errors of a path that leads nowhere. All others are failures, which calls that only ask raise as well.
NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})


class Statistics(NamedTuple):
    """Space and commits of a volume; blocks are of 4096 bytes."""

    #: All blocks.
    blocks: int
    #: Free blocks.
    free_blocks: int
    #: Blocks that become free with a later commit.
    pending_blocks: int
    #: Blocks of the catalog.
    catalog_blocks: int
    #: Commits since the volume was opened.
    commits: int
    #: Those of them that were checkpoints.
    checkpoints: int


class DirEntry:
    """An entry of a directory, as `os.DirEntry`. The calls of its volume take it as a path.

    It is no `os.PathLike`: the builtin `open` would open the file of the same name outside of the volume.
    """

    __slots__ = ("_inode", "_kind", "name", "path", "volume")

    def __init__(self, volume: Volume, directory: str, name: str, kind: int, inode: int) -> None:
        #: The name.
        self.name = name
        #: The path of the directory as it was given, and the name.
        self.path = os.path.join(directory, name)
        #: The volume.
        self.volume = volume
        self._kind, self._inode = kind, inode

    @property
    def _text(self) -> str:
        return self.path

    def inode(self) -> int:
        """The number of the inode."""
        return self._inode

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """True for a directory, and for a link to one."""
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """True for a regular file, and for a link to one."""
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        """True for a symbolic link."""
        return stat.S_ISLNK(self._kind)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """The attributes."""
        return self.volume.stat(self.path, follow_symlinks=follow_symlinks)

    def _mode(self, follow_symlinks: bool) -> int:
        if not (follow_symlinks and self.is_symlink()):
            return self._kind
        try:
            return self.stat().st_mode
        except FileNotFoundError:
            return 0

    def __repr__(self) -> str:
        return f"<uringfs.DirEntry {self.name!r}>"


def is_directory(entry: DirEntry, follow_symlinks: bool) -> bool:
    """True for a directory, as to `os.walk`: False for a link that cannot be followed."""
    try:
        return entry.is_dir(follow_symlinks=follow_symlinks)
    except OSError:
        return False


class ScandirIterator:
    """The entries of a directory, as `os.scandir` returns them: an iterator, and a context manager."""

    def __init__(self, entries: Iterator[DirEntry]) -> None:
        self._entries = entries

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> DirEntry:
        return next(self._entries)

    def close(self) -> None:
        """Ends the iteration."""
        self._entries = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
