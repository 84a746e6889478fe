"""Forks, workers, and the end of the interpreter with requests in flight."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

import uringfs
from uringfs.aio import AsyncFile

#: When a program that hangs is killed, in seconds.
TIMEOUT = 60


def status_of(child: int) -> int:
    """The exit status of a child; one that hangs is killed."""
    deadline = time.monotonic() + TIMEOUT
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(ended[1])


def in_child(check) -> int:
    """Runs a check in the child of a fork, which ends without the interpreter's own end. Returns its exit status."""
    child = os.fork()
    if child == 0:
        try:
            check()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
    return status_of(child)


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a program in an interpreter of its own."""
    command = [sys.executable, "-X", "faulthandler", "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)


def assert_refused(call) -> None:
    with pytest.raises(ChildProcessError, match="before a fork and belongs to the parent.*'spawn'") as refused:
        call()
    assert refused.value.errno == errno.ECHILD and refused.value.filename


def test_a_child_gets_clear_errors_and_its_parent_is_unharmed(volume):
    file = volume.open_file("/file", "w+", direct=True)
    file.write_at(bytes(8192), 0)
    stream = volume.open("/stream", "wb")
    stream.write(b"in the buffer")

    def check():
        assert volume.inherited
        assert_refused(lambda: volume.listdir())
        assert_refused(lambda: volume.open("/file"))
        assert_refused(lambda: volume.sync())
        assert_refused(lambda: file.read_at(10, 0))
        assert_refused(lambda: file.readinto_at(bytearray(10), 0))
        assert_refused(lambda: file.write_at(b"x", 0))
        assert_refused(lambda: file.read_ranges([0], 10, bytearray(10)))
        assert_refused(lambda: file.sync())
        assert_refused(lambda: stream.flush())

        async def read():
            await AsyncFile(file).read_at(10, 0)

        assert_refused(lambda: asyncio.run(read()))
        # Neither does anything.
        file.close()
        volume.close()

    assert in_child(check) == 0
    assert not volume.inherited
    assert file.read_at(8192, 0) == bytes(8192)
    file.write_at(b"y", 0)
    stream.close()
    assert (volume / "stream").read_bytes() == b"in the buffer"


def test_destructors_in_a_child_touch_no_ring(tmp_path):
    """The child drops everything, with operations of the parent in flight, and ends as interpreters do."""
    program = """
import asyncio, gc, os, sys
import uringfs
from uringfs.aio import AsyncFile

async def main(volume):
    file = AsyncFile(volume.open_file("/file", "w+", direct=True))
    await file.write_at(bytes(1 << 20), 0)
    reads = [asyncio.ensure_future(file.read_at(4096, at * 4096)) for at in range(64)]
    await asyncio.sleep(0)
    child = os.fork()
    if child == 0:
        return None
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert await asyncio.gather(*reads) == [bytes(4096)] * 64
    await file.write_at(b"parent", 0, durable=True)
    return file

volume = uringfs.Volume.create(sys.argv[1], 64 << 20)
parent = os.getpid()
file = asyncio.run(main(volume))
if os.getpid() != parent:
    del volume, file
    gc.collect()
    sys.exit(0)
volume.close()
with uringfs.Volume(sys.argv[1]) as volume:
    assert volume.open("/file", "rb").read(6) == b"parent"
"""
    ended = run(program, tmp_path / "uringfs.img")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_child_opens_a_volume_of_its_own(image, tmp_path):
    other = tmp_path / "other.img"
    with uringfs.Volume.create(other, 64 << 20) as volume:
        (volume / "file").write_bytes(b"other" * 10_000)

    def check():
        with uringfs.Volume(other, read_only=True) as volume, volume.open_file("/file", direct=True) as file:
            assert file.read_at(5, 10_000) == b"other"

    with uringfs.Volume(image) as volume, volume.open_file("/file", "w+", direct=True) as file:
        file.write_at(bytes(4096), 0, durable=True)
        assert in_child(check) == 0


def load(task: tuple[str, int]) -> bytes:
    """A worker opens the volume for reading."""
    path, number = task
    with uringfs.Volume(path, read_only=True) as volume, volume.open_file("/samples") as file:
        return file.read_at(100, number * 100)


def test_workers_that_are_spawned_share_a_volume_for_reading(image):
    with uringfs.Volume(image) as volume:
        (volume / "samples").write_bytes(b"".join(bytes([number]) * 100 for number in range(20)))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(load, [(str(image), number) for number in range(20)])
    assert found == [bytes([number]) * 100 for number in range(20)]


def test_a_volume_that_was_left_open_has_everything(tmp_path):
    program = """
import sys
import uringfs
volume = uringfs.Volume.create(sys.argv[1], 64 << 20)
buffered = volume.open("/buffered", "w")
buffered.write("in the buffer of Python")
file = volume.open_file("/cached", "w")
file.write_at(b"in the page cache", 0)
"""
    path = tmp_path / "uringfs.img"
    ended = run(program, path)
    assert ended.returncode == 0, ended.stderr
    with uringfs.Volume(path) as volume:
        assert (volume / "buffered").read_text() == "in the buffer of Python"
        assert (volume / "cached").read_bytes() == b"in the page cache"


def test_a_volume_that_a_program_drops_as_it_ends_has_everything(tmp_path):
    program = """
import sys
import uringfs
stream = uringfs.Volume.create(sys.argv[1], 64 << 20).open("/stream", "w")
stream.write("in the buffer of Python")
(uringfs.Volume.create(sys.argv[2], 64 << 20) / "dropped").write_bytes(bytes(range(256)) * 65536)
"""
    paths = [tmp_path / "stream.img", tmp_path / "dropped.img"]
    ended = run(program, *paths)
    assert (ended.returncode, ended.stderr) == (0, "")
    with uringfs.Volume(paths[0]) as volume:
        assert (volume / "stream").read_text() == "in the buffer of Python"
    with uringfs.Volume(paths[1]) as volume:
        assert (volume / "dropped").read_bytes() == bytes(range(256)) * 65536


def test_a_volume_that_is_dropped_reports_that_its_close_has_failed(tmp_path):
    program = """
import resource, sys
import uringfs
volume = uringfs.Volume.create(sys.argv[1], 64 << 20)
(volume / "file").write_bytes(bytes(1 << 20))
# From here on, writes to the image fail with EFBIG.
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
del volume
"""
    path = tmp_path / "uringfs.img"
    ended = run(program, path)
    assert ended.returncode == 0
    assert ended.stderr.startswith(f"Exception ignored in: {str(path)!r}") and "OSError: [Errno" in ended.stderr


def test_the_interpreter_ends_with_awaited_operations_in_flight(tmp_path):
    program = """
import asyncio, sys
import uringfs
from uringfs.aio import AsyncFile

volume = uringfs.Volume.create(sys.argv[1], 64 << 20)
file = AsyncFile(volume.open_file("/file", "w+", direct=True))
buffers = [bytearray(65536) for _ in range(64)]

async def main():
    await file.write_at(bytes(4 << 20), 0)
    for number, buffer in enumerate(buffers):
        asyncio.ensure_future(file.readinto_at(buffer, number * 65536))
        asyncio.ensure_future(file.write_at(b"x" * 4096, number * 65536))
    await asyncio.sleep(0)

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
print("ends")
sys.stdout.flush()
"""
    path = tmp_path / "uringfs.img"
    ended = run(program, path)
    assert (ended.returncode, ended.stdout) == (0, "ends\n"), ended.stderr
    assert "Fatal" not in ended.stderr and "panicked" not in ended.stderr
    with uringfs.Volume(path) as volume:
        assert volume.getsize("/file") == 4 << 20


@pytest.mark.parametrize("how", ["returns", "raises", "exits"])
def test_the_interpreter_ends_while_threads_wait_for_the_device(tmp_path, how):
    program = """
import sys, threading
import uringfs

volume = uringfs.Volume.create(sys.argv[1], 64 << 20)
file = volume.open_file("/file", "w+", direct=True)
file.write_at(bytes(1 << 20), 0)
started = threading.Barrier(9)

def use(number):
    buffer = bytearray(5000)
    for turn in range(1 << 30):
        if turn == 10:
            started.wait()
        file.write_at(bytes(4096), number * 4096, durable=True)
        file.readinto_at(buffer, turn % 200 * 5000)
        file.read_ranges([0, 8192, 100_000], 4096, bytearray(12288))

def quiet(*arguments):
    # The volume closes under the threads.
    pass

threading.excepthook = quiet
for number in range(8):
    threading.Thread(target=use, args=(number,), daemon=True).start()
started.wait()
if sys.argv[2] == "raises":
    raise RuntimeError("on purpose")
if sys.argv[2] == "exits":
    sys.exit(7)
"""
    path = tmp_path / "uringfs.img"
    for _ in range(3):
        path.unlink(missing_ok=True)
        ended = run(program, path, how)
        assert ended.returncode == {"returns": 0, "raises": 1, "exits": 7}[how], ended.stderr
        assert "Fatal" not in ended.stderr and "panicked" not in ended.stderr
        with uringfs.Volume(path) as volume:
            assert volume.getsize("/file") == 1 << 20


def test_a_killed_program_leaves_what_it_had_made_durable(tmp_path):
    program = """
import os, signal, sys
import uringfs
volume = uringfs.Volume.create(sys.argv[1], 64 << 20)
with volume.open("/durable", "wb") as file:
    file.write(b"kept")
    file.flush()
    file.raw.sync()
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "uringfs.img"
    assert run(program, path).returncode == -signal.SIGKILL
    with uringfs.Volume(path) as volume:
        assert (volume / "durable").read_bytes() == b"kept"
