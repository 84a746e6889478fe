"""Reads of many ranges into one buffer."""

from __future__ import annotations

import random
import threading

import numpy
import pytest

SIZE = 4 << 20


@pytest.fixture(scope="module")
def content():
    return random.Random(4).randbytes(SIZE)


@pytest.fixture(params=["direct", "buffered"])
def file(request, volume, content):
    (volume / "file").write_bytes(content)
    volume.sync()
    with volume.open_file("/file", direct=request.param == "direct") as file:
        yield file


@pytest.mark.parametrize("depth", [1, 2, 64, 5000])
@pytest.mark.parametrize("length", [1, 100, 4096, 10_000])
def test_equal_lengths_fill_the_rows_of_an_array(file, content, depth, length):
    chance = random.Random(length)
    offsets = [chance.randrange(SIZE - length + 1) for _ in range(300)]
    out = numpy.zeros((300, length), dtype=numpy.uint8)
    assert file.read_ranges(offsets, length, out, depth) == out.nbytes
    for row, offset in enumerate(offsets):
        assert out[row].tobytes() == content[offset : offset + length]


@pytest.mark.parametrize("kind", [list, numpy.array, lambda values: numpy.array(values, dtype=numpy.uint64)])
def test_each_range_may_have_its_length(file, content, kind):
    chance = random.Random(5)
    lengths = [chance.choice([0, 1, 17, 4096, 70_000]) for _ in range(100)]
    offsets = [chance.randrange(SIZE - length) for length in lengths]
    out = bytearray(sum(lengths) + 10)
    assert file.read_ranges(kind(offsets), kind(lengths), out) == sum(lengths)
    expected = b"".join(content[offset : offset + length] for offset, length in zip(offsets, lengths))
    assert out == expected + bytes(10)


def test_wrong_ranges_are_refused(file):
    out = bytearray(8192)
    with pytest.raises(EOFError, match="range 1 ends beyond the end of /file"):
        file.read_ranges([0, SIZE - 100], 4096, out)
    with pytest.raises(EOFError):
        file.read_ranges([1 << 40], 1, out)
    with pytest.raises(ValueError, match="do not fit"):
        file.read_ranges([0, 0, 0], 4096, out)
    with pytest.raises(ValueError, match="2 offsets and 1 lengths"):
        file.read_ranges([0, 0], [1], out)
    with pytest.raises(ValueError, match="below 0"):
        file.read_ranges(numpy.array([-1]), 1, out)
    with pytest.raises(OverflowError):
        file.read_ranges([-1], 1, out)
    with pytest.raises(ValueError, match="1 GiB"):
        file.read_ranges([0], 1 << 31, out)
    with pytest.raises((BufferError, TypeError)):
        file.read_ranges([0], 1, bytes(10))
    assert file.read_ranges([], 4096, out) == file.read_ranges([], [], bytearray()) == 0
    out.extend(b"the buffer is free again")


def test_the_raw_file_has_it_too(volume, content):
    (volume / "file").write_bytes(content)
    with volume.open("/file", "rb") as file:
        out = bytearray(20)
        assert file.raw.read_ranges([0, 100], 10, out) == 20
        assert out == content[:10] + content[100:110] and file.tell() == 0


def test_threads_read_ranges_at_once(file, content):
    failures = []

    def read(seed):
        try:
            chance = random.Random(seed)
            offsets = [chance.randrange(SIZE - 5000) for _ in range(200)]
            out = bytearray(200 * 5000)
            file.read_ranges(offsets, 5000, out, 32)
            assert out == b"".join(content[offset : offset + 5000] for offset in offsets)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
