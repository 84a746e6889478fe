"""Files for asyncio: operations that are awaited, without threads.

>>> import asyncio, tempfile, uringfs
>>> from uringfs.aio import AsyncFile
>>> folder = tempfile.TemporaryDirectory()
>>> volume = uringfs.Volume.create(f"{folder.name}/disk.img", size=64 << 20)
>>> async def main():
...     with AsyncFile(volume.open_file("/data", "w+")) as file:
...         await file.write_at(b"hello world", 0)
...         return await asyncio.gather(file.read_at(5, 0), file.read_at(5, 6))
>>> asyncio.run(main())
[b'hello', b'world']

The loop watches a descriptor of the thread's reactor, which does the I/O; any loop that has `add_reader` will do,
uvloop's as well. An operation whose await is cancelled goes on to its end, and keeps its buffer until then. A loop
that ends waits for such operations: `asyncio.run` does so, and `loop.shutdown_asyncgens()` of a loop that a program
runs itself. Names and opening block the loop as they would in a program without it: call them in a thread if the
volume's catalog is not in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any, Self

from uringfs import _uringfs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from typing_extensions import Buffer

    from uringfs._uringfs import File

__all__ = ["AsyncFile"]


class _Operations(threading.local):
    """The operations in flight of a thread's event loops."""

    def __init__(self) -> None:
        self.futures: dict[int, asyncio.Future[Any]] = {}
        #: The loop that ran last.
        self.loop: asyncio.AbstractEventLoop | None = None
        #: The loops that watch the reactor.
        self.watching: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    def future(self, number: int) -> asyncio.Future[Any]:
        """The future of an operation, which is done when the operation has ended."""
        loop = asyncio.get_running_loop()
        if loop is not self.loop:
            self.watch(loop)
        future = self.futures[number] = loop.create_future()
        return future

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes the running loop collect operations that have ended."""
        if loop not in self.watching:
            end = self.end_of_loop()
            loop.add_reader(_uringfs.descriptor(), self.collect, end)
            # The loop notes a generator that begins, and closes it at its end.
            with contextlib.suppress(StopIteration):
                end.__anext__().send(None)
            self.watching.add(loop)
        self.loop = loop

    async def end_of_loop(self) -> AsyncGenerator[None, None]:
        """Waits at a loop's end for operations whose awaits were cancelled: they may hold locks, and keep buffers."""
        try:
            yield
        finally:
            _uringfs.finish()
            self.collect()

    def collect(self, _end: object = None) -> None:
        """Ends the futures of operations that have ended. The loop keeps `_end`, which it closes at its own end."""
        for number, value, is_error in _uringfs.collect():
            # An operation that was started without a running loop has no future.
            future = self.futures.pop(number, None)
            if future is None or future.done() or future.get_loop().is_closed():
                continue
            if is_error:
                future.set_exception(value)
            else:
                future.set_result(value)


_operations = _Operations()


class AsyncFile:
    """A file whose operations are awaited. Several may be in flight at once.

    The calls are those of `File`. `AsyncFile(volume.open_file(path))` makes one; it closes the file when it is closed.
    """

    __slots__ = ("file",)

    def __init__(self, file: File) -> None:
        #: The file.
        self.file = file

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.file.size

    async def read_at(self, length: int, offset: int) -> bytes:
        """Reads up to `length` bytes at `offset`, of at most 1 GiB: fewer at the end of the file."""
        has_ended, value = self.file.start_read(length, offset)
        data: bytes = value if has_ended else await _operations.future(value)
        return data

    async def readinto_at(self, buffer: Buffer, offset: int) -> int:
        """Reads into a writable buffer, of at most 1 GiB. The buffer cannot be resized meanwhile."""
        has_ended, value = self.file.start_readinto(buffer, offset)
        read: int = value if has_ended else await _operations.future(value)
        return read

    async def write_at(self, data: Buffer, offset: int, *, durable: bool = False) -> int:
        """Writes all of a buffer, which must not change meanwhile."""
        written: int = await _operations.future(self.file.start_write(data, offset, durable))
        return written

    async def append(self, data: Buffer, *, durable: bool = False) -> int:
        """Appends a buffer of at most 1 GiB, and returns its offset. ValueError for a larger one."""
        offset: int = await _operations.future(self.file.start_append(data, durable))
        return offset

    async def sync(self, *, data_only: bool = False) -> None:
        """Makes all completed writes durable."""
        await _operations.future(self.file.start_sync(data_only))

    def close(self) -> None:
        """Closes the file. Operations in flight go on to their end."""
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()
