"""The file system `uringfs://` of fsspec, for pandas, pyarrow, duckdb, zarr, dask and others.

The URL has the path of the volume's file or device, a colon, and the path in the volume, as the commands of the program
`uringfs` have it; or the path alone, with the volume in the option `volume`:

>>> import fsspec, tempfile, uringfs
>>> folder = tempfile.TemporaryDirectory()
>>> image = f"{folder.name}/disk.img"
>>> uringfs.Volume.create(image, size=64 << 20).close()
>>> with fsspec.open(f"uringfs://{image}:/table.csv", "w") as file:
...     _ = file.write("a,b\\n1,2\\n")
>>> fs = fsspec.filesystem("uringfs", volume=image)
>>> fs.cat("/table.csv")
b'a,b\\n1,2\\n'
>>> fs.ls("/", detail=False)
['/table.csv']

All file systems of a process share the `Volume` that it has open. One that a URL has opened stays open until its
`volume` is closed. Changes are durable after `UringFileSystem.sync`, or when the volume closes, at the latest when
the interpreter exits.
"""

from __future__ import annotations

import datetime
import io
import os
import secrets
import stat
import threading
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]
from fsspec.utils import isfilelike, stringify_path  # type: ignore[import-untyped]

from uringfs._entries import NOWHERE
from uringfs._files import Mode, RawFile
from uringfs._volume import Volume, open_volumes, real_path

if TYPE_CHECKING:
    from collections.abc import Sequence

_PREFIX = "uringfs://"

#: Bytes that are copied at a time between a volume and another file system.
_CHUNK = 1 << 20

#: The most bytes of a range of `File.read_ranges`.
_MAX_RANGE = 1 << 30

_opening = threading.Lock()

#: The volumes that were opened by path. They stay open until they are closed, or the interpreter exits: the next URL is
#: likely to need them again.
_opened: list[Volume] = []


def _shared_volume(path: str, read_only: bool) -> Volume:
    """The volume of a path that this process has open, or opens now."""
    real = real_path(path)
    with _opening:
        for volume in open_volumes():
            if volume._real_path == real:
                if read_only and not volume.read_only:
                    what = f"{path} is open for writing in this process: close it first, or leave read_only out"
                    raise ValueError(what)
                return volume
        _opened[:] = [volume for volume in _opened if not volume.closed]
        _opened.append(Volume(path, read_only=read_only))
        return _opened[-1]


def _unpickle(volume: str, options: dict[str, Any]) -> UringFileSystem:
    return UringFileSystem(volume, **options)


class UringFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of a volume. Paths begin at the volume's root.

    `volume` is the path of the volume's file or device, or an open `Volume`. With `read_only` it is opened for
    reading, which processes share; it is refused if this process has it open for writing. With `auto_mkdir`,
    directories of files that are written are created. In a transaction, files that `open`, `pipe_file` and `put_file`
    write appear at its end; appends and modes with "+" are refused, and other calls act at once.
    """

    protocol = "uringfs"
    root_marker = "/"
    #: fsspec would find an instance by the text of its arguments, whose volume may be closed.
    cachable = False

    def __init__(
        self,
        volume: str | os.PathLike[str] | Volume | None = None,
        *,
        read_only: bool = False,
        auto_mkdir: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if volume is None:
            example = "uringfs://disk.img:/table.parquet"
            raise ValueError(f"no volume: write uringfs://VOLUME:/PATH, as {example}, or pass volume=")
        self.auto_mkdir = auto_mkdir
        #: The volume.
        self.volume = volume if isinstance(volume, Volume) else _shared_volume(os.fspath(volume), read_only)

    def __reduce__(self) -> Any:
        """Another process opens the volume itself; where it is open, it is shared."""
        options = {"read_only": self.volume.read_only, "auto_mkdir": self.auto_mkdir}
        return _unpickle, (self.volume._real_path, options)

    # URLs.

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = stringify_path(path)
        if text.startswith(_PREFIX):
            text = text.removeprefix(_PREFIX)
            _, colon, inner = text.partition(":/")
            text = inner if colon else text
        return "/" + text.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        volume, colon, _ = path.removeprefix(_PREFIX).partition(":/")
        return {"volume": volume} if path.startswith(_PREFIX) and colon else {}

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path, with the volume."""
        return f"{_PREFIX}{self.volume._real_path}:{self._strip_protocol(name)}"

    @property
    def fsid(self) -> str:
        """The identity of the volume."""
        return f"uringfs-{self.volume.uuid}"

    # Files.

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        """Opens a file as the builtin `open` does, but in binary mode if none is given."""
        is_staged = not options.get("autocommit", not self._intrans)
        if "b" in mode or compression is not None or is_staged:
            return super().open(path, mode, block_size, cache_options, compression, **options)
        # A text file that fsspec makes of a binary one would lose its last characters when the volume closes first.
        path = self._strip_protocol(path)
        if Mode(mode).kind != "r":
            self._make_parent(path)
        text = {name: options[name] for name in ("encoding", "errors", "newline") if name in options}
        return self.volume.open(path, mode, **text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        **_: Any,
    ) -> Any:
        parsed = Mode(mode)
        if not autocommit and (parsed.kind == "a" or parsed.updates):
            what = "append to" if parsed.kind == "a" else "update"
            raise ValueError(f"a transaction cannot {what} {path}: do that outside of it, or write the whole file")
        if parsed.kind != "r":
            self._make_parent(path)
        if not autocommit and parsed.kind in "wx":
            return _StagedFile(self.volume, path, parsed)
        if parsed.raw == "r":
            return _ReadFile(self.volume.open(path, "rb", 0))
        return self.volume.open(path, mode)

    def _make_parent(self, path: str) -> None:
        if self.auto_mkdir:
            self.volume.makedirs(self._parent(path), exist_ok=True)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The content, or a range of it."""
        with self.volume.open_file(self._strip_protocol(path)) as file:
            begin, stop, _step = slice(start, end).indices(file.size)
            return file.read_at(max(stop - begin, 0), begin)

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        depth: int = 64,
        **_: Any,
    ) -> list[Any]:
        """The bytes of many ranges, read with up to `depth` reads at a time."""
        starts = [starts] * len(paths) if starts is None or isinstance(starts, int) else list(starts)
        ends = [ends] * len(paths) if ends is None or isinstance(ends, int) else list(ends)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("there are not as many starts and ends as paths")
        results: list[Any] = [None] * len(paths)
        numbers: dict[str, list[int]] = {}
        for number, path in enumerate(paths):
            numbers.setdefault(self._strip_protocol(path), []).append(number)
        for path, own in numbers.items():
            try:
                ranges = [(starts[number], ends[number]) for number in own]
                for number, data in zip(own, self._read_ranges(path, ranges, depth)):
                    results[number] = data
            except Exception as error:
                if on_error != "return":
                    raise
                for number in own:
                    results[number] = error
        return results

    def _read_ranges(self, path: str, ranges: list[tuple[int | None, int | None]], depth: int) -> list[bytes]:
        with self.volume.open_file(path) as file:
            size = file.size
            found = [range(*slice(start, end).indices(size)) for start, end in ranges]
            parts = [part for each in found for part in _parts(each)]
            memory = memoryview(bytearray(sum(map(len, found))))
            file.read_ranges([part.start for part in parts], [len(part) for part in parts], memory, depth)
        at, data = 0, []
        for each in found:
            data.append(bytes(memory[at : at + len(each)]))
            at += len(each)
        return data

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        """Writes the content of a file."""
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        """Creates a file, or sets its times to now and with `truncate` its size to 0."""
        path = self._strip_protocol(path)
        self._make_parent(path)
        self.volume.open_file(path, "w" if truncate else "a").close()
        self.volume.utime(path)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copies a file, or creates a directory as the first is one."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._make_parent(path2)
        if self.volume.isdir(path1):
            self.volume.makedirs(path2, exist_ok=True)
        else:
            self.volume.copyfile(path1, path2)

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **_: Any) -> None:
        """Copies a file out of the volume, to a path or a file of the system."""
        rpath = self._strip_protocol(rpath)
        if isfilelike(lpath):
            outfile = lpath
        elif self.volume.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        if outfile is None:
            if self.auto_mkdir or not os.path.isdir(os.path.dirname(lpath)):
                os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
            with self.volume.open_file(rpath) as source, open(lpath, "wb") as target:
                self._copy_out(source, target, callback)
        else:
            with self.volume.open_file(rpath) as source:
                self._copy_out(source, outfile, callback)

    @staticmethod
    def _copy_out(source: Any, target: Any, callback: Any) -> None:
        size, at = source.size, 0
        if callback is not None:
            callback.set_size(size)
        while data := source.read_at(_CHUNK, at):
            target.write(data)
            at += len(data)
            if callback is not None:
                callback.relative_update(len(data))

    def put_file(self, lpath: Any, rpath: str, callback: Any = None, mode: str = "overwrite", **_: Any) -> None:
        """Copies a file of the system into the volume."""
        if os.path.isdir(lpath):
            self.volume.makedirs(self._strip_protocol(rpath), exist_ok=True)
            return
        with open(lpath, "rb") as source, self.open(rpath, "xb" if mode == "create" else "wb") as target:
            if callback is not None:
                callback.set_size(os.fstat(source.fileno()).st_size)
            while data := source.read(_CHUNK):
                target.write(data)
                if callback is not None:
                    callback.relative_update(len(data))

    # Names.

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Creates a directory; those above it, too, unless told otherwise."""
        path = self._strip_protocol(path)
        if create_parents:
            self.volume.makedirs(path)
        else:
            self.volume.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Creates a directory, and those above it."""
        self.volume.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        self.volume.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        """Removes a file."""
        self.volume.remove(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files, and with `recursive` directories with all that is in them."""
        for each in path if isinstance(path, list) else [path]:
            inner = self._strip_protocol(each)
            if not self.volume.isdir(inner) or self.volume.islink(inner):
                self.volume.remove(inner)
            elif recursive:
                self.volume.rmtree(inner)
            else:
                raise ValueError(f"{inner} is a directory; remove it with recursive=True")

    def mv(self, path1: str, path2: str, recursive: bool = True, maxdepth: int | None = None, **_: Any) -> None:
        """Renames a file or a directory; into a directory if the new name is that of another one."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._make_parent(path2)
        if self.volume.isdir(path2) and not (self.volume.isdir(path1) and self.volume.samefile(path1, path2)):
            path2 = f"{path2.rstrip('/')}/{path1.rsplit('/', 1)[-1]}"
        self.volume.rename(path1, path2)

    def link(self, src: str, dst: str) -> None:
        """Gives a file a further name."""
        self.volume.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src: str, dst: str) -> None:
        """Creates a symbolic link."""
        self.volume.symlink(self._strip_protocol(src), self._strip_protocol(dst))

    # Attributes.

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The paths in a directory, with their attributes."""
        path = self._strip_protocol(path)
        if not self.volume.isdir(path):
            return [self.info(path) if detail else self.info(path)["name"]]
        if not detail:
            base = path.rstrip("/")
            return [f"{base}/{name}" for name in self.volume.listdir(path)]
        found = []
        for entry in self.volume.scandir(path):
            try:
                info = self.info(entry.path)
            except FileNotFoundError:
                # Removed meanwhile.
                continue
            if info["islink"] and info["type"] == "directory":
                # As of `file://`, so that `walk` and `find` do not follow it: it may lead back.
                info["type"] = "other"
            found.append(info)
        return found

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """The attributes of a path, as those of `file://`."""
        path = self._strip_protocol(path)
        status = self.volume.lstat(path)
        is_link = stat.S_ISLNK(status.st_mode)
        result: dict[str, Any] = {"name": path, "islink": is_link}
        if is_link:
            result["destination"] = self.volume.readlink(path)
            try:
                status = self.volume.stat(path)
            except OSError as error:
                # Of a link that leads nowhere, these are its own.
                if error.errno not in NOWHERE:
                    raise
        kind = {stat.S_IFDIR: "directory", stat.S_IFREG: "file"}.get(stat.S_IFMT(status.st_mode), "other")
        result |= {"size": status.st_size, "type": kind, "created": status.st_ctime}
        for field in ("mode", "uid", "gid", "mtime", "ino", "nlink"):
            result[field] = getattr(status, f"st_{field}")
        return result

    def exists(self, path: str, **_: Any) -> bool:
        """True if the path leads to something."""
        return self.volume.exists(self._strip_protocol(path))

    def lexists(self, path: str, **_: Any) -> bool:
        """True if the path leads to something, or to a symbolic link that leads nowhere."""
        return self.volume.lexists(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        """True if the path leads to a regular file."""
        return self.volume.isfile(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        """True if the path leads to a directory."""
        return self.volume.isdir(self._strip_protocol(path))

    def islink(self, path: str) -> bool:
        """True if the path is a symbolic link."""
        return self.volume.islink(self._strip_protocol(path))

    def created(self, path: str) -> datetime.datetime:
        """The time of the last change of the attributes, as of `file://`."""
        return datetime.datetime.fromtimestamp(self.info(path)["created"], tz=datetime.UTC)

    def modified(self, path: str) -> datetime.datetime:
        """The time of the last change of the content."""
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.UTC)

    def chmod(self, path: str, mode: int) -> None:
        """Changes the permissions."""
        self.volume.chmod(self._strip_protocol(path), mode)

    def ukey(self, path: str) -> str:
        """A text that changes with the content."""
        info = self.info(path)
        return f"{self.fsid}-{info['ino']}-{info['size']}-{info['mtime']}"

    def sync(self) -> None:
        """Makes all changes durable."""
        self.volume.sync()


def _parts(whole: range) -> list[range]:
    """A range of bytes in parts that `File.read_ranges` takes."""
    return [whole[at : at + _MAX_RANGE] for at in range(0, len(whole), _MAX_RANGE)]


class _ReadFile(io.BufferedReader):
    """A file that is read, with its size: `read_block` of fsspec asks for it."""

    def __init__(self, raw: RawFile) -> None:
        super().__init__(raw)
        self._file = raw.file

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._file.size


class _StagedFile(io.BufferedWriter):
    """A file of a transaction: it has its name when the transaction commits."""

    def __init__(self, volume: Volume, path: str, mode: Mode) -> None:
        self._volume, self._path = volume, path
        self._is_exclusive = mode.kind == "x"
        if self._is_exclusive and volume.exists(path):
            raise FileExistsError(path)
        self._staged = f"{path}.{secrets.token_hex(8)}.part"
        super().__init__(RawFile(volume.open_file(self._staged, "x"), "x"))

    def commit(self) -> None:
        """Gives the file its name."""
        self.close()
        if self._is_exclusive:
            # Unlike a rename, this fails if the name exists by now.
            self._volume.link(self._staged, self._path)
            self._volume.remove(self._staged)
        else:
            self._volume.rename(self._staged, self._path)

    def discard(self) -> None:
        """Removes the file."""
        try:
            self.close()
        finally:
            self._volume.remove(self._staged)
