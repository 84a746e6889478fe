#!/usr/bin/env python3
"""Measures the Python package beside the system's calls, in interleaved pairs: a round of one, a round of the other.

    bindings/python/bench.py [--folder FOLDER] [--rounds ROUNDS]

It needs the wheel, built with --release, fsspec, numpy and pyarrow, an idle machine, and 1 GiB in the folder, which
should be on a disk. Each line is a ratio of rates, ours by theirs: the median of the rounds' ratios, and its 95 %
interval from 2,000 resamplings.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy
import pyarrow
import pyarrow.parquet

import uringfs
from uringfs.fsspec import UringFileSystem

MIB = 1 << 20
BLOCK = 4096
#: The file of the ranges, in bytes.
FILE_BYTES = 256 * MIB
#: Ranges of a batch, and how many are read at once.
RANGES, DEPTH = 1000, 64
#: Cached reads of a round.
CACHED_READS = 20_000


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def compare(name: str, rounds: int, ours: Callable[[int], object], theirs: Callable[[int], object]) -> None:
    """Prints the ratio of the rates of two calls, which get the number of the round."""
    ratios, times = [], ([], [])
    # The first pair warms both up.
    for number in range(rounds + 1):
        pair = [lambda: ours(number), lambda: theirs(number)]
        order = [0, 1] if number % 2 else [1, 0]
        took = [0.0, 0.0]
        for which in order:
            took[which] = seconds(pair[which])
        if number:
            ratios.append(took[1] / took[0])
            times[0].append(took[0])
            times[1].append(took[1])
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    low, high = medians[50], medians[-51]
    took = [statistics.median(each) * 1e3 for each in times]
    ratio = f"{statistics.median(ratios):.2f} [{low:.2f}, {high:.2f}]"
    print(f"{name}: {ratio}  ({took[0]:.2f} and {took[1]:.2f} ms a round)")


def cached_reads(volume: uringfs.Volume, folder: Path, rounds: int) -> None:
    """`readinto_at` of cached 4 KiB, and `os.preadv`."""
    content = bytes(MIB)
    (volume / "cached").write_bytes(content)
    (folder / "cached").write_bytes(content)
    file, descriptor = volume.open_file("/cached"), os.open(folder / "cached", os.O_RDONLY)
    buffer = memoryview(bytearray(BLOCK))
    offsets = [number * 97 % (MIB // BLOCK) * BLOCK for number in range(CACHED_READS)]
    file.read_at(MIB, 0)

    def ours(_: int) -> None:
        readinto_at = file.readinto_at
        for offset in offsets:
            readinto_at(buffer, offset)

    def theirs(_: int) -> None:
        preadv, buffers = os.preadv, [buffer]
        for offset in offsets:
            preadv(descriptor, buffers, offset)

    compare("readinto_at of a cached 4 KiB / os.preadv", rounds, ours, theirs)
    file.close()
    os.close(descriptor)


def batches(volume: uringfs.Volume, folder: Path, rounds: int) -> None:
    """A batch of ranges of a file that is not cached, and a loop of `os.pread`."""
    chunk = numpy.random.default_rng(1).bytes(MIB)
    with volume.open_file("/cold", "w", direct=True) as file, open(folder / "cold", "wb") as other:
        for at in range(0, FILE_BYTES, MIB):
            file.write_at(chunk, at)
            other.write(chunk)
        file.sync()
        os.fsync(other.fileno())
    file, descriptor = volume.open_file("/cold", direct=True), os.open(folder / "cold", os.O_RDONLY)
    out = numpy.empty((RANGES, BLOCK), dtype=numpy.uint8)

    def offsets(number: int, side: int) -> list[int]:
        chance = random.Random(number * 2 + side)
        return [block * BLOCK for block in chance.sample(range(FILE_BYTES // BLOCK), RANGES)]

    # Different ranges on both sides and in each round, so that no cache below has them; made before the time is taken.
    own = [offsets(number, 0) for number in range(rounds + 1)]
    their = [offsets(number, 1) for number in range(rounds + 1)]

    def ours(number: int) -> None:
        file.read_ranges(own[number], BLOCK, out, DEPTH)

    def theirs(number: int) -> None:
        for offset in their[number]:
            os.pread(descriptor, BLOCK, offset)

    def cold(call: Callable[[int], None]) -> Callable[[int], None]:
        def run(number: int) -> None:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            call(number)

        return run

    compare(f"read_ranges of {RANGES} cold ranges, depth {DEPTH} / os.pread", rounds, ours, cold(theirs))
    file.close()
    os.close(descriptor)


def parquet(volume: uringfs.Volume, folder: Path, rounds: int) -> None:
    """A Parquet file by the same reader over `uringfs://` and `file://`, cached on both sides, and cold."""
    chance = numpy.random.default_rng(2)
    columns = {f"c{number}": chance.random(200_000) for number in range(16)}
    table = pyarrow.table(columns)
    ours, theirs = UringFileSystem(volume), fsspec.filesystem("file")
    paths = "/table.parquet", str(folder / "table.parquet")
    for fs, path in zip((ours, theirs), paths, strict=True):
        with fs.open(path, "wb") as file:
            pyarrow.parquet.write_table(table, file, row_group_size=50_000)
    volume.sync()

    def read(fs: fsspec.AbstractFileSystem, path: str) -> None:
        with fs.open(path, "rb") as file:
            assert pyarrow.parquet.read_table(file).num_rows == table.num_rows

    name = f"a Parquet file of {volume.getsize(paths[0]) // MIB} MiB by pyarrow, uringfs:// / file://"
    compare(f"{name}, cached", rounds, lambda _: read(ours, paths[0]), lambda _: read(theirs, paths[1]))

    def read_column(fs: fsspec.AbstractFileSystem, path: str, number: int) -> None:
        with fs.open(path, "rb") as file:
            pyarrow.parquet.read_table(file, columns=[f"c{number % 16}"])

    compare(
        f"{name}, one column of 16, cached",
        rounds,
        lambda number: read_column(ours, paths[0], number),
        lambda number: read_column(theirs, paths[1], number),
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--folder", help="where the files are made; else the folder of temporary files")
    arguments.add_argument("--rounds", type=int, default=15)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="uringfs-bench-", dir=given.folder) as made:
        folder = Path(made)
        with uringfs.Volume.create(folder / "disk.img", FILE_BYTES + 160 * MIB) as volume:
            for measure in (cached_reads, batches, parquet):
                measure(volume, folder, given.rounds)


if __name__ == "__main__":
    main()
