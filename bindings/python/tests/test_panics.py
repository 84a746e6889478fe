"""A panic in the library ends no program: the call raises OSError, and the volume or file can only be closed."""

from __future__ import annotations

import asyncio
import errno

import pytest

import uringfs
from uringfs import aio

pytestmark = pytest.mark.skipif(
    not hasattr(uringfs.File, "_planted_panic"), reason="a release build has no calls that panic"
)


def raised_by(call) -> tuple[int | None, str | None]:
    with pytest.raises(OSError, match="which is a mistake in uringfs") as raised:
        call()
    return raised.value.errno, raised.value.filename


def test_of_a_file(volume):
    file, other = volume.open_file("/file", "w+"), volume.open_file("/file")
    file.write_at(b"text", 0)
    assert raised_by(file._planted_panic) == (errno.ENOTRECOVERABLE, "/file")
    assert raised_by(lambda: file.read_at(4, 0)) == (errno.ENOTRECOVERABLE, "/file")
    assert raised_by(file.sync) == (errno.ENOTRECOVERABLE, "/file")
    file.close()
    assert file.closed
    assert other.read_at(4, 0) == b"text"


def test_of_a_volume(tmp_path):
    path = tmp_path / "uringfs.img"
    volume = uringfs.Volume.create(path, 64 << 20)
    file = volume.open_file("/file", "w+")
    file.write_at(b"text", 0)
    assert raised_by(volume._planted_panic) == (errno.ENOTRECOVERABLE, str(path))
    assert raised_by(volume.listdir) == (errno.ENOTRECOVERABLE, str(path))
    assert file.read_at(4, 0) == b"text"
    volume.close()
    with uringfs.Volume(path) as volume:
        assert volume.listdir() == ["file"]


def test_of_an_operation_that_is_awaited(volume):
    file = volume.open_file("/file", "w+")

    async def run() -> None:
        with pytest.raises(OSError, match="which is a mistake in uringfs") as raised:
            await aio._operations.future(file._start_planted_panic())
        assert raised.value.errno == errno.ENOTRECOVERABLE
        # Others of the loop go on.
        with aio.AsyncFile(volume.open_file("/other", "w+")) as other:
            await other.write_at(b"text", 0)
            assert await other.read_at(4, 0) == b"text"

    asyncio.run(run())
    assert raised_by(lambda: file.read_at(4, 0)) == (errno.ENOTRECOVERABLE, "/file")


def test_of_something_else_in_the_reactor_is_no_failure_of_the_call_that_drives_it(volume):
    file = volume.open_file("/file", "w+", direct=True)
    file.write_at(bytes(range(256)) * 64, 0)
    buffer = bytearray(8192)
    for _ in range(3):
        file._plant_panic_in_reactor()
        assert file.readinto_at(buffer, 4096) == 8192
        file._plant_panic_in_reactor()
        assert file.read_ranges([0, 256, 8192], 256, buffer) == 768
        assert buffer[:256] == bytes(range(256))
        # The library has given the buffer back.
        buffer.append(0)
        del buffer[-1]

    async def run() -> None:
        with aio.AsyncFile(volume.open_file("/other", "w+", direct=True)) as other:
            file._plant_panic_in_reactor()
            assert await other.write_at(bytes(4096), 0) == 4096
            file._plant_panic_in_reactor()
            assert await other.read_at(4096, 0) == bytes(4096)

    asyncio.run(run())


def test_refused_calls_leave_no_buffer_exported(volume):
    file = volume.open_file("/file", "w+")
    buffer = bytearray(100_000)
    with pytest.raises(ValueError):
        file.read_ranges([0], 200_000, buffer)
    buffer.append(0)
    raised_by(file._planted_panic)
    for refused in (file.readinto_at, file.write_at):
        raised_by(lambda call=refused: call(buffer, 0))
        buffer.append(0)
