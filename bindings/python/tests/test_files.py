"""Files: by offset, raw, buffered and text, compared with builtin files."""

from __future__ import annotations

import array
import asyncio
import errno
import io
import mmap
import os
import random
import threading
import time

import numpy
import pytest

import uringfs
from uringfs import _files
from uringfs.aio import AsyncFile

#: The modes in which both sides are compared.
MODES = ["rb", "r+b", "wb", "w+b", "ab", "a+b"]


def outcome(call):
    """The result of a call, or the kind of its error."""
    try:
        result = call()
    except (OSError, ValueError) as error:
        return type(error)
    return bytes(result) if isinstance(result, memoryview) else result


@pytest.mark.parametrize("buffering", [0, 8192, 17])
@pytest.mark.parametrize("mode", MODES)
def test_a_file_does_what_a_builtin_file_does(volume, tmp_path, mode, buffering):
    seed = random.randrange(1 << 32)
    print(f"the seed is {seed}")
    chance = random.Random(seed)
    content = chance.randbytes(20_000)
    (volume / "file").write_bytes(content)
    (tmp_path / "file").write_bytes(content)

    def readinto(file, length):
        buffer = bytearray(length)
        read = file.readinto(buffer)
        return read, bytes(buffer[: read or 0])

    calls = [
        lambda file, number, data: file.read(number),
        lambda file, number, data: readinto(file, number),
        lambda file, number, data: file.readline(number),
        lambda file, number, data: file.write(data),
        lambda file, number, data: file.write(memoryview(data)),
        lambda file, number, data: file.seek(number),
        lambda file, number, data: file.seek(number - 5000, os.SEEK_CUR),
        lambda file, number, data: file.seek(-number, os.SEEK_END),
        lambda file, number, data: file.seek(number + 20_000),
        lambda file, number, data: file.tell(),
        lambda file, number, data: file.flush(),
        lambda file, number, data: file.truncate(number * 2),
        lambda file, number, data: file.truncate(),
        lambda file, number, data: (file.readable(), file.writable(), file.seekable()),
    ]
    with volume.open("/file", mode, buffering) as ours, open(tmp_path / "file", mode, buffering) as theirs:
        assert (ours.mode, ours.tell()) == (theirs.mode, theirs.tell())
        for step in range(400):
            number = chance.choice([0, 1, 16, 100, 4096, 5000, 9999])
            data = chance.randbytes(chance.choice([0, 1, 100, 4096, 6000]))
            which = chance.randrange(len(calls))
            found, expected = (outcome(lambda: calls[which](file, number, data)) for file in (ours, theirs))
            assert found == expected, f"step {step}, call {which}, seed {seed}"
            assert outcome(ours.tell) == outcome(theirs.tell), f"step {step}, call {which}, seed {seed}"
    for call in (lambda file: file.read(1), lambda file: file.write(b"x"), lambda file: file.tell()):
        for file in (ours, theirs):
            with pytest.raises(ValueError):
                call(file)
    assert (volume / "file").read_bytes() == (tmp_path / "file").read_bytes()


def test_text_has_encodings_newlines_and_line_buffering(volume):
    with volume.open("/text", "w", encoding="latin-1", newline="\r\n") as file:
        file.write("é\nline\n")
    assert (volume / "text").read_bytes() == b"\xe9\r\nline\r\n"
    with volume.open("/text", encoding="latin-1") as file:
        assert (file.name, file.mode, file.read()) == ("/text", "r", "é\nline\n")
    with volume.open("/text", "a", buffering=1) as file:
        file.write("more\n")
        assert (volume / "text").read_bytes().endswith(b"more\n")
    with volume.open("/new", "x+") as file:
        file.write("both")
        file.seek(0)
        assert file.read() == "both"


@pytest.mark.parametrize("mode", ["", "rw", "z", "rr", "bt", "rbt", "+", "b", "U"])
def test_a_wrong_mode_is_refused_as_by_open(volume, mode):
    with pytest.raises(ValueError):
        open("/dev/null", mode)
    with pytest.raises(ValueError):
        volume.open("/file", mode)
    assert not volume.exists("/file")


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "w", "buffering": 0},
        {"mode": "wb", "encoding": "utf-8"},
        {"mode": "wb", "errors": "strict"},
        {"mode": "wb", "newline": ""},
        {"mode": "w", "newline": "x"},
        {"mode": "w", "encoding": "no such encoding"},
        {"mode": "w", "encoding": "hex"},
        {"mode": "w", "errors": 7},
        {"mode": "w", "buffering": "8"},
        {"mode": "wb", "buffering": None},
    ],
)
def test_wrong_arguments_are_refused_before_the_file_is_opened(volume, arguments):
    (volume / "file").write_bytes(b"content")
    with pytest.raises((ValueError, LookupError, TypeError)) as theirs:
        open("/dev/null", **arguments)
    for path in ("/file", "/new"):
        with pytest.raises(theirs.type):
            volume.open(path, **arguments)
    assert (volume / "file").read_bytes() == b"content" and volume.listdir() == ["file"]


def test_a_file_has_calls_by_offset(volume):
    with volume.open_file("/file", "w+") as file:
        assert file.write_at(b"world", 6) == 5
        assert file.write_at(bytearray(b"hello "), 0, durable=True) == 6
        assert file.append(memoryview(b"!")) == 11
        assert file.append(array.array("H", [0x3F3F]), durable=True) == 12
        assert (file.size, file.path, file.closed) == (14, "/file", False)
        assert file.read_at(100, 0) == b"hello world!??"
        assert file.read_at(5, 6) == b"world"
        assert file.read_at(5, 14) == file.read_at(5, 1 << 40) == file.read_at(0, 0) == b""
        assert file.stat().st_size == 14
        file.truncate(5)
        file.sync()
        file.sync(data_only=True)
        assert file.read_at(100, 0) == b"hello"
        file.allocate(0, 1 << 20)
        assert (file.size, file.allocated) == (1 << 20, 1 << 20)
        file.punch_hole(0, 1 << 20)
        assert (file.seek_hole(0), file.allocated) == (0, 0)
        with pytest.raises(OSError) as none:
            file.seek_data(0)
        assert (none.value.errno, none.value.filename) == (errno.ENXIO, "/file")
    assert file.closed and "closed" in repr(file)


@pytest.mark.parametrize("direct", [False, True])
def test_reads_go_into_any_contiguous_writable_memory(volume, direct):
    content = random.Random(1).randbytes(300_000)
    (volume / "file").write_bytes(content)
    volume.sync()
    file = volume.open_file("/file", direct=direct)
    numbers = numpy.zeros(1000, dtype=numpy.float64)
    for buffer in (bytearray(8000), array.array("d", bytes(8000)), numbers, memoryview(bytearray(9000))[1:8001]):
        for _ in ("from the device", "from the cache"):
            assert file.readinto_at(buffer, 77) == 8000
            assert bytes(memoryview(buffer).cast("B")) == content[77:8077]
    whole = bytearray(400_000)
    assert file.readinto_at(whole, 0) == 300_000
    assert whole[:300_000] == content and not any(whole[300_000:])
    assert file.read_at(1 << 30, 1) == content[1:]
    assert file.readinto_at(bytearray(), 0) == 0
    matrix = numpy.zeros((64, 64), dtype=numpy.uint8)
    with pytest.raises((BufferError, ValueError)):
        file.readinto_at(matrix[:, ::2], 0)
    with pytest.raises((BufferError, TypeError)):
        file.readinto_at(bytes(10), 0)
    with pytest.raises(TypeError):
        file.readinto_at([0] * 10, 0)
    with pytest.raises(OverflowError):
        file.readinto_at(bytearray(10), -1)


def test_a_mode_that_does_not_allow_something_is_an_error(volume):
    volume.open_file("/file", "w").close()
    with volume.open_file("/file") as reader, pytest.raises(OSError) as refused:
        reader.write_at(b"x", 0)
    assert (refused.value.errno, refused.value.filename) == (errno.EBADF, "/file")
    with volume.open_file("/file", "a") as writer, pytest.raises(OSError) as refused:
        writer.read_at(1, 0) or writer.readinto_at(bytearray(1), 0)
    assert refused.value.errno == errno.EBADF
    with volume.open("/file", "rb") as reader, pytest.raises(io.UnsupportedOperation):
        reader.write(b"x")


def test_direct_and_buffered_handles_see_the_same_bytes(volume):
    with volume.open_file("/file", "w+") as buffered, volume.open_file("/file", "r+", direct=True) as direct:
        chance = random.Random(2)
        model = bytearray(1 << 20)
        buffered.truncate(1 << 20)
        for turn in range(100):
            writer = (buffered, direct)[turn % 2]
            data = chance.randbytes(chance.choice([1, 100, 4096, 30_000]))
            at = chance.randrange((1 << 20) - len(data))
            assert writer.write_at(data, at) == len(data)
            model[at : at + len(data)] = data
            reader = (buffered, direct)[turn // 2 % 2]
            assert reader.read_at(len(data) + 10, at) == model[at : at + len(data) + 10]
        assert buffered.read_at(1 << 20, 0) == direct.read_at(1 << 20, 0) == model


def test_the_raw_file_has_the_calls_by_offset_and_keeps_its_cursor(volume):
    with volume.open("/file", "w+b") as file:
        raw = file.raw
        assert isinstance(raw, uringfs.RawFile)
        assert raw.write_at(b"0123456789", 0) == 10
        buffer = bytearray(3)
        assert raw.readinto_at(buffer, 4) == 3 and buffer == b"456"
        assert raw.read_at(2, 8) == b"89"
        assert raw.tell() == 0
        raw.sync()
        assert raw.seek(0, os.SEEK_DATA) == 0
        assert raw.seek(0, os.SEEK_HOLE) == 10
        with pytest.raises(ValueError, match="whence"):
            raw.seek(0, 9)
        with pytest.raises(io.UnsupportedOperation, match="call sync of the raw file"):
            file.fileno()


def test_threads_read_and_write_one_file_at_once(volume):
    failures = []
    size, part = 1 << 20, 1 << 17
    with volume.open_file("/file", "w+") as file:

        def use(number):
            try:
                chance = random.Random(number)
                for _ in range(30):
                    data = chance.randbytes(10_000)
                    at = number * part + chance.randrange(part - 10_000)
                    file.write_at(data, at)
                    assert file.read_at(10_000, at) == data
                    buffer = bytearray(10_000)
                    assert file.readinto_at(buffer, at) == 10_000 and buffer == data
            except BaseException as error:
                failures.append(error)

        file.truncate(size)
        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_appends_of_threads_never_overlap(volume):
    offsets = []
    with volume.open_file("/log", "a") as file:

        def append():
            offsets.extend(file.append(b"x" * 100) for _ in range(50))

        threads = [threading.Thread(target=append) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(offsets) == list(range(0, 200 * 100, 100))


def test_an_append_of_more_than_a_gibibyte_is_refused_and_a_stream_splits_it(volume, monkeypatch):
    with mmap.mmap(-1, (1 << 30) + 1) as large:
        with volume.open_file("/log", "a") as file:
            with pytest.raises(ValueError, match=r"append of 1073741825 bytes to /log is over 1 GiB"):
                file.append(large)
            with pytest.raises(ValueError, match="in parts"):
                asyncio.run(AsyncFile(file).append(large))
            assert file.size == 0
    content = random.Random(4).randbytes(10_000)
    monkeypatch.setattr(_files, "MAX_APPEND", 999)
    for buffering in (0, 100):
        with volume.open("/log", "ab", buffering) as file:
            assert file.write(content) == len(content)
            assert file.write(array.array("d", content)) == len(content)
            assert file.write(b"") == 0 and file.tell() == file.seek(0, os.SEEK_END)
    assert (volume / "log").read_bytes() == content * 4


def test_other_threads_run_while_one_waits_for_the_device(volume):
    """A wait for the device holds no GIL: operations of one thread end while another one computes without a pause."""
    with volume.open_file("/file", "w+", direct=True) as file:
        file.write_at(bytes(1 << 20), 0, durable=True)
        stop, counted = threading.Event(), []

        def count():
            turns = 0
            while not stop.is_set():
                turns += 1
            counted.append(turns)

        thread = threading.Thread(target=count)
        thread.start()
        for turn in range(100):
            file.write_at(bytes(65536), turn % 16 << 16, durable=True)
        stop.set()
        thread.join()
    assert counted[0] > 1000


def test_threads_that_end_leave_no_descriptor(volume):
    (volume / "file").write_bytes(bytes(100_000))
    volume.sync()

    def use():
        with volume.open_file("/file", direct=True) as file:
            assert file.read_at(5000, 1) == bytes(5000)

    def run(count):
        for _ in range(count):
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
            # The interpreter is done with the thread, which may not have ended: wait until the kernel has none.
            while os.path.exists(f"/proc/self/task/{thread.native_id}"):
                time.sleep(0.001)

    run(2)
    before = len(os.listdir("/proc/self/fd"))
    run(20)
    assert len(os.listdir("/proc/self/fd")) <= before
