"""A loader of samples for training, as those of torch: workers read batches of a file in a volume.

    python loader.py [IMAGE]

Makes a volume in the file IMAGE, else in a temporary one. `Samples` is a map-style dataset: torch's `DataLoader`
takes it, with `multiprocessing_context="spawn"`. Each worker opens the volume for reading, which processes share while
none has it open for writing. Beside a writer a worker gets one line that says who that is; programs that share files
with a writer use the volume's mount.
"""

import multiprocessing
import random
import subprocess
import sys
import tempfile

import numpy

import uringfs

SAMPLES, SAMPLE_BYTES, BATCH, WORKERS = 4096, 3072, 256, 2


class Samples:
    """Samples of one length in a file. The volume is opened by the process that reads, at its first batch."""

    def __init__(self, image: str, path: str) -> None:
        self.image, self.path = image, path
        self.file: uringfs.File | None = None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> numpy.ndarray:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> numpy.ndarray:
        """A batch: one call, many reads at once, one array. torch uses it where it exists."""
        if self.file is None:
            self.volume = uringfs.Volume(self.image, read_only=True)
            # Past the page cache: each sample is read once in an epoch.
            self.file = self.volume.open_file(self.path, direct=True)
        batch = numpy.empty((len(indices), SAMPLE_BYTES), dtype=numpy.uint8)
        offsets = [index * SAMPLE_BYTES for index in indices]
        self.file.read_ranges(offsets, SAMPLE_BYTES, batch, depth=64)
        return batch

    def __getstate__(self) -> dict[str, object]:
        # A worker gets the place of the samples, and nothing that is open.
        return {"image": self.image, "path": self.path, "file": None}


samples: Samples


def begin_worker(given: Samples) -> None:
    global samples
    samples = given


def load(indices: list[int]) -> numpy.ndarray:
    return samples.__getitems__(indices)


def write(image: str) -> None:
    """Sample `n` has bytes of value `n % 251`."""
    with uringfs.Volume.create(image, size=64 << 20) as volume, volume.open("/samples", "wb") as file:
        for number in range(SAMPLES):
            file.write(bytes([number % 251]) * SAMPLE_BYTES)


def read(image: str) -> None:
    order = random.sample(range(SAMPLES), SAMPLES)
    batches = [order[begin : begin + BATCH] for begin in range(0, SAMPLES, BATCH)]
    # "spawn": a child of a fork must not use what its parent has open.
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS, begin_worker, [Samples(image, "/samples")]) as pool:
        for indices, batch in zip(batches, pool.imap(load, batches)):
            assert (batch == numpy.array(indices, dtype=numpy.uint32)[:, None] % 251).all()
    print(f"{len(batches)} batches of {BATCH} samples by {WORKERS} workers")


def beside_a_writer(image: str) -> None:
    opens = "import sys, uringfs; uringfs.Volume(sys.argv[1], read_only=True)"
    with uringfs.Volume(image):
        reader = subprocess.run([sys.executable, "-c", opens, image], capture_output=True, text=True)
    print(reader.stderr.splitlines()[-1])


def main(image: str) -> None:
    write(image)
    read(image)
    beside_a_writer(image)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory(prefix="uringfs-") as folder:
            main(f"{folder}/disk.img")
