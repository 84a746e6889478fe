"""Mounted sides of `mounts`: servers with what they serve, their processor time, and a watchdog. All are removed however
the program ends."""

import atexit
import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from targets import GIB, RamDisk, checked, retry

# Bytes of a side's disk, of images on it, and of the file that is read.
DISK = 6 * GIB
IMAGE = 9 * GIB // 4
FILE = GIB
# A server that has used no processor time for so long, while a client runs, is stuck.
STUCK_S = 30
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SWITCH = pathlib.Path("/sys/module/fuse/parameters/enable_uring")
# Programs that turn the switch on share a lock on it. The first keeps its value here, the last puts that back.
SWITCH_BEFORE = pathlib.Path("/run/uringfs-enable_uring")


class IoUringSwitch:
    """Turns on requests over io_uring until the program ends. False where the kernel has none."""

    def __init__(self):
        self.is_on = SWITCH.exists()
        if not self.is_on:
            return
        self.lock = os.open(SWITCH, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self.lock, fcntl.LOCK_SH)
        with contextlib.suppress(FileExistsError), open(SWITCH_BEFORE, "x", encoding="ascii") as before:
            before.write(SWITCH.read_text())
        SWITCH.write_text("Y")
        atexit.register(self.put_back)

    def put_back(self):
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        SWITCH.write_text(SWITCH_BEFORE.read_text())
        SWITCH_BEFORE.unlink()
        os.close(self.lock)


class Folder:
    """A folder of the disk that the program is started on, without a file system of its own."""

    def __init__(self, disk):
        self.folder = tempfile.mkdtemp(prefix="uringfs-bench-", dir=disk)
        atexit.register(lambda: shutil.rmtree(self.folder, ignore_errors=True))

    def cool(self):
        """Drops cached bytes, but not names."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                drop_cached(pathlib.Path(folder) / name)


class RamGround:
    """ext4 on a RAM disk."""

    def __init__(self):
        self.disk = RamDisk(DISK)
        self.folder = self.disk.folder
        make_ext4(self.disk.device)
        self.disk.mount()

    def cool(self):
        self.disk.umount()
        self.disk.mount()


class LoopGround:
    """ext4 on a loop device over a file of the disk."""

    def __init__(self, disk):
        handle, self.file = tempfile.mkstemp(prefix="uringfs-bench-", dir=disk)
        os.posix_fallocate(handle, 0, DISK)
        os.close(handle)
        self.folder, self.device = tempfile.mkdtemp(prefix="uringfs-bench-"), None
        atexit.register(self.remove)
        self.device = checked(["losetup", "--show", "--find", "--direct-io=on", self.file]).strip()
        make_ext4(self.device)
        checked(["mount", self.device, self.folder])

    def cool(self):
        retry(lambda: checked(["umount", self.folder]))
        checked(["mount", self.device, self.folder])

    def remove(self):
        if os.path.ismount(self.folder):
            retry(lambda: checked(["umount", self.folder]))
        os.rmdir(self.folder)
        if self.device:
            checked(["losetup", "--detach", self.device])
        os.unlink(self.file)


def make_ext4(device):
    checked(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device])


def drop_cached(path):
    with contextlib.suppress(OSError), open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Ext4:
    """The ground itself, without a server."""

    over_io_uring = False
    is_served = False

    def __init__(self, name, ground):
        self.name, self.ground = name, ground
        self.directory = pathlib.Path(ground.folder) / "tree"
        self.directory.mkdir()

    def file(self):
        return self.directory / "file"

    def prepare(self, fill):
        fill(self.file())

    def start(self):
        pass

    def stop(self):
        pass

    def cool(self):
        """Begins anew, with nothing cached."""
        self.stop()
        self.ground.cool()
        self.start()

    def cpu_seconds(self):
        return 0.0

    def pin(self, processors):
        pass

    def abort(self):
        pass

    def is_mounted(self):
        return True


class Server(Ext4):
    """A directory that a process serves. `command` gets the mounted directory."""

    is_served = True

    def __init__(self, name, ground, command, over_io_uring=False, environment=None):
        self.name, self.ground, self.command, self.over_io_uring = name, ground, command, over_io_uring
        self.environment, self.process, self.connection = environment, None, None
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="uringfs-bench-"))
        self.messages = tempfile.TemporaryFile()
        atexit.register(self.remove)

    def start(self):
        words = [str(word) for word in self.command(self.directory)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=self.messages, stderr=self.messages, env=self.environment
        )
        deadline = time.monotonic() + 20
        while not self.is_mounted():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.messages.seek(0)
                sys.exit(f"{self.name}: {' '.join(words)} mounts nothing: {self.messages.read().decode().strip()}")
            time.sleep(0.01)
        self.connection = mounted(self.mount_point())
        os.stat(self.mount_point())

    def mount_point(self):
        return self.directory

    def is_mounted(self):
        return mounted(self.mount_point()) is not None

    def stop(self):
        if self.process is None:
            return
        retry(lambda: checked(["umount", self.mount_point()]))
        self.process.wait(60)
        self.process, self.connection = None, None

    def abort(self):
        """Ends all requests with an error, so that no program waits for them."""
        if self.connection is not None:
            with contextlib.suppress(OSError):
                pathlib.Path(f"/sys/fs/fuse/connections/{self.connection}/abort").write_text("1")

    def remove(self):
        if self.process is not None:
            self.abort()
            subprocess.run(["umount", "-l", self.mount_point()], check=False, stderr=subprocess.DEVNULL)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def threads(self):
        return [int(name) for name in os.listdir(f"/proc/{self.process.pid}/task")]

    def cpu_seconds(self):
        """The processor time that the server has used, in user and in kernel mode."""
        return process_seconds(self.process.pid)

    def pin(self, processors):
        """Keeps the server on some processors. Threads that serve queues of io_uring choose theirs."""
        if not self.over_io_uring:
            for thread in self.threads():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, processors)


class Qemu(Server):
    """An image that is exported as a file."""

    def mount_point(self):
        return self.directory / "file"

    def start(self):
        self.mount_point().touch()
        super().start()


def process_seconds(process):
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def machine_seconds():
    """The time that all processors have worked."""
    ticks = [int(word) for word in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) * TICK_S


def mounted(directory):
    """The number of the mount's connection, without asking its server."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == str(directory):
            return int(fields[2].split(":")[1])
    return None


class Watchdog:
    """Runs clients. When nothing moves it aborts the connection of the side, and the program ends."""

    def __init__(self, side):
        self.side = side

    def run(self, command, **options):
        """The standard output of a command."""
        words = [str(word) for word in command]
        client = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        with self.watching(client.kill):
            output, errors = client.communicate()
        if client.returncode != 0:
            sys.exit(f"{self.side.name}: {' '.join(words)}: {errors.strip() or client.returncode}")
        return output

    def call(self, work):
        """The seconds that a function takes."""
        with self.watching(lambda: None):
            begin = time.monotonic()
            work()
            return time.monotonic() - begin

    @contextlib.contextmanager
    def watching(self, kill):
        ended = threading.Event()

        def watch():
            seen, since = None, time.monotonic()
            while not ended.wait(1):
                with contextlib.suppress(OSError):
                    used = self.side.cpu_seconds()
                    if used != seen:
                        seen, since = used, time.monotonic()
                if time.monotonic() - since > STUCK_S:
                    print(f"{self.side.name}: nothing moves for {STUCK_S} s, its connection is aborted", file=sys.stderr)
                    self.side.abort()
                    kill()
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

        thread = threading.Thread(target=watch, daemon=True)
        if self.side.is_served:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if self.side.is_served:
                thread.join()
