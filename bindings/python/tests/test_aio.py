"""asyncio: operations that are awaited, many at once, cancelled, and beside calls that block."""

from __future__ import annotations

import asyncio
import errno
import gc
import random
import threading

import pytest

import uringfs
from uringfs import _uringfs, aio
from uringfs.aio import AsyncFile

BLOCK = 4096


@pytest.fixture
def content():
    return random.Random(3).randbytes(4 << 20)


@pytest.fixture
def file(volume, content):
    """A file of 4 MiB that reads past the page cache."""
    (volume / "file").write_bytes(content)
    volume.sync()
    with AsyncFile(volume.open_file("/file", "r+", direct=True)) as file:
        yield file


def test_operations_are_those_of_a_file(volume):
    async def main():
        async with AsyncFile(volume.open_file("/new", "w+")) as file:
            assert await file.write_at(b"hello", 0) == 5
            assert await file.write_at(memoryview(b" world"), 5, durable=True) == 6
            assert await file.append(b"!") == 11
            assert await file.append(bytearray(b"!"), durable=True) == 12
            await file.sync()
            await file.sync(data_only=True)
            assert file.size == 13
            assert await file.read_at(100, 0) == b"hello world!!"
            assert await file.read_at(100, 13) == b""
            buffer = bytearray(20)
            assert await file.readinto_at(buffer, 6) == 7 and buffer[:7] == b"world!!"
        with pytest.raises(ValueError, match="closed file"):
            await file.read_at(1, 0)

    asyncio.run(main())


def test_errors_have_errno_and_path(volume):
    volume.open_file("/file", "w").close()

    async def main():
        with AsyncFile(volume.open_file("/file", "r")) as file, pytest.raises(OSError) as refused:
            await file.write_at(b"x", 0)
        assert (refused.value.errno, refused.value.filename) == (errno.EBADF, "/file")

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, 64, 3000])
def test_many_reads_are_in_flight_at_once(file, content, count):
    async def read(number):
        offset = number * 977 % (len(content) - BLOCK)
        if number % 2:
            assert await file.read_at(BLOCK, offset) == content[offset : offset + BLOCK]
        else:
            buffer = bytearray(BLOCK)
            assert await file.readinto_at(buffer, offset) == BLOCK
            assert buffer == content[offset : offset + BLOCK]

    async def main():
        await asyncio.gather(*(read(number) for number in range(count)))

    asyncio.run(main())


def test_reads_and_writes_under_load_lose_nothing(volume):
    async def use(file, number):
        chance = random.Random(number)
        for _ in range(20):
            data = chance.randbytes(chance.choice([100, BLOCK, 3 * BLOCK]))
            at = number * 65536 + chance.randrange(65536 - len(data))
            await file.write_at(data, at)
            assert await file.read_at(len(data), at) == data

    async def main():
        for direct in (False, True):
            with AsyncFile(volume.open_file("/load", "w+", direct=direct)) as file:
                await asyncio.gather(*(use(file, number) for number in range(32)))
                await file.sync()

    asyncio.run(main())


def test_the_loop_runs_other_tasks_meanwhile(file):
    async def main():
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counter = asyncio.create_task(count())
        for number in range(50):
            await file.read_at(BLOCK, number * BLOCK)
        counter.cancel()
        assert turns > 50

    asyncio.run(main())


def test_a_buffer_is_not_resized_while_a_read_has_it(file, content):
    async def main():
        buffer = bytearray(BLOCK)
        read = asyncio.ensure_future(file.readinto_at(buffer, 0))
        await asyncio.sleep(0)
        assert not read.done()
        with pytest.raises(BufferError):
            buffer.extend(b"more")
        assert await read == BLOCK and buffer == content[:BLOCK]
        buffer.extend(b"more")

    asyncio.run(main())


def test_a_cancelled_read_keeps_its_buffer_until_it_has_ended(file, content):
    async def main():
        buffer = bytearray(BLOCK)
        read = asyncio.ensure_future(file.readinto_at(buffer, BLOCK))
        await asyncio.sleep(0)
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        while True:
            # Reads of the same device, so that the loop collects what has ended.
            await file.read_at(BLOCK, 0)
            try:
                buffer.extend(b"more")
                break
            except BufferError:
                continue
        assert buffer[:BLOCK] == content[BLOCK : 2 * BLOCK]

    asyncio.run(main())


def test_calls_that_block_end_while_operations_are_in_flight(file, content):
    """The same reactor serves both, so neither waits for a lock of the other for ever."""

    async def main():
        for turn in range(20):
            writes = [
                asyncio.ensure_future(file.write_at(content[at : at + 10_000], at))
                for at in range(0, 200_000, 10_000)
            ]
            await asyncio.sleep(0)
            assert file.file.write_at(content[5000:15_000], 5000) == 10_000
            assert file.file.read_at(BLOCK, turn * BLOCK) == content[turn * BLOCK : (turn + 1) * BLOCK]
            # Those that ended during the calls are collected, too.
            await asyncio.gather(*writes)

    asyncio.run(main())


def test_loops_follow_each_other_and_run_in_threads(file, content):
    async def read():
        return await asyncio.gather(*(file.read_at(BLOCK, number * BLOCK) for number in range(20)))

    expected = [content[number * BLOCK : (number + 1) * BLOCK] for number in range(20)]
    for _ in range(3):
        assert asyncio.run(read()) == expected
    found = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(read()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
    # Two loops of one thread, in turns.
    loops = [asyncio.new_event_loop() for _ in range(2)]
    for _ in range(3):
        for loop in loops:
            assert loop.run_until_complete(read()) == expected
    for loop in loops:
        loop.close()


def test_a_loop_that_closes_with_operations_in_flight_harms_no_other(file, content):
    async def leave():
        for number in range(50):
            asyncio.ensure_future(file.read_at(BLOCK, number * BLOCK))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    async def read():
        return await file.read_at(BLOCK, 0)

    assert asyncio.run(read()) == content[:BLOCK]


def leave_writes(file):
    """A program that leaves writes to one block, which follow each other, and their buffers."""
    buffers = [bytearray(BLOCK) for _ in range(100)]

    async def leave():
        for buffer in buffers:
            asyncio.ensure_future(file.write_at(buffer, 0, durable=True))
        await asyncio.sleep(0)

    return leave(), buffers


def test_a_loop_that_ends_waits_for_the_operations_that_it_leaves(file):
    main, buffers = leave_writes(file)
    asyncio.run(main)
    for buffer in buffers:
        buffer.append(0)
    # No write holds the lock of the block, for which another thread would wait for ever.
    thread = threading.Thread(target=file.file.write_at, args=(bytes(BLOCK), 0))
    thread.start()
    thread.join()


def test_a_loop_that_a_program_runs_waits_as_it_shuts_generators_down(file):
    # A second loop, which takes turns with the first, ends none of the first's operations.
    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    for _ in range(2):
        for each in (loop, other):
            each.run_until_complete(file.read_at(BLOCK, 0))
    main, buffers = leave_writes(file)
    loop.run_until_complete(main)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(loop.shutdown_asyncgens())
    for buffer in buffers:
        buffer.append(0)
    loop.close()
    assert len(other.run_until_complete(file.read_at(BLOCK, 0))) == BLOCK
    other.run_until_complete(other.shutdown_asyncgens())
    other.close()


def test_an_operation_that_was_started_without_a_loop_harms_no_other(file, content):
    with pytest.raises(RuntimeError, match="no running event loop"):
        file.write_at(content[:BLOCK], 0).send(None)
    _uringfs.finish()
    aio._operations.collect()
    assert asyncio.run(file.read_at(BLOCK, 0)) == content[:BLOCK]


@pytest.mark.parametrize("count", [1, 2000])
@pytest.mark.parametrize("direct", [False, True])
def test_a_volume_closes_while_operations_are_in_flight(image, direct, count):
    volume = uringfs.Volume(image)

    async def main():
        file = AsyncFile(volume.open_file("/file", "w+", direct=direct))
        writes = [
            asyncio.ensure_future(file.write_at(bytes([number % 256]) * BLOCK, number * BLOCK, durable=number == 0))
            for number in range(count)
        ]
        await asyncio.sleep(0)
        volume.close()
        with pytest.raises(ValueError, match="closed"):
            await file.read_at(1, 0)
        assert await asyncio.gather(*writes) == [BLOCK] * count

    asyncio.run(main())
    with uringfs.Volume(image) as volume:
        assert (volume / "file").read_bytes() == b"".join(bytes([number % 256]) * BLOCK for number in range(count))


def test_a_volume_that_is_dropped_waits_for_operations_whose_awaits_were_cancelled(image):
    async def write():
        file = AsyncFile(uringfs.Volume(image).open_file("/file", "w+", direct=True))
        writes = [asyncio.ensure_future(file.write_at(bytes(BLOCK), number * BLOCK)) for number in range(100)]
        await asyncio.sleep(0)
        for each in writes:
            each.cancel()
        await asyncio.wait(writes)

    async def main():
        await write()
        gc.collect()
        with uringfs.Volume(image) as volume:
            assert volume.getsize("/file") == 100 * BLOCK

    asyncio.run(main())


def test_a_volume_closes_although_an_operation_panics(image):
    """Planted: see test_panics."""
    volume = uringfs.Volume(image)

    async def main():
        file = volume.open_file("/file", "w+", direct=True)
        write = asyncio.ensure_future(AsyncFile(file).write_at(bytes(BLOCK), 0))
        await asyncio.sleep(0)
        if hasattr(file, "_plant_panic_in_reactor"):
            file._plant_panic_in_reactor()
        volume.close()
        assert await write == BLOCK

    asyncio.run(main())
    with uringfs.Volume(image) as volume:
        assert volume.getsize("/file") == BLOCK
