"""RAM disks, file systems and volumes as targets. They are removed however the program ends."""

import atexit
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time

GIB = 1 << 30
# Bytes of a volume: two files of a gibibyte, and metadata.
VOLUME = 9 * GIB // 4
# Bytes of Z and of the devices of K: a file of a gibibyte, and metadata.
FILE_SYSTEM = 3 * GIB // 2
# The file systems of K, with their options.
KERNEL = {"ext4": [], "xfs": [], "btrfs": ["-o", "nodatacow"]}
# Descriptions of the targets, for a reader of recorded figures.
KINDS = {
    "F": "a file of 1 GiB of zeros on ext4 on a RAM disk (zram), only read",
    "W": "a file like F, written",
    "Z": "a raw RAM disk (zram) of zeros",
    "V": "a volume in a file beside F",
    "VZ": "a volume on a raw RAM disk (zram)",
    "D": "a file of 4 GiB on the disk",
    "null": "`null:1g`, which moves no data: only the cost of the path remains",
    "null_blk": "the RAM device of the counted guest, which copies each block: a volume on one, the bare ring on another",
    "nvme": "namespaces of QEMU's NVMe device in the counted guest, waits left out: a volume on a character device",
    "sim": "`sim:1g,latency=80us,units=64`, which takes 80 us for a request and runs 64 at once",
}


class RamDisk:
    """A zram device of this many bytes, and an empty folder to mount it on."""

    def __init__(self, size):
        control = pathlib.Path("/sys/class/zram-control/hot_add")
        if not control.exists():
            # Loading the module adds one device, which is not used.
            subprocess.run(["modprobe", "zram"], check=False)
        if not control.exists():
            sys.exit("this kernel has no zram; the targets need it")
        self.number = control.read_text().strip()
        self.size = size
        self.device = f"/dev/zram{self.number}"
        self.folder = tempfile.mkdtemp(prefix="uringfs-bench-")
        atexit.register(self.remove)
        self.block = pathlib.Path(f"/sys/block/zram{self.number}")
        (self.block / "disksize").write_text(str(size))

    def reset(self):
        """Empties the device."""
        retry(lambda: (self.block / "reset").write_text("1"))
        (self.block / "disksize").write_text(str(self.size))

    def mount(self, system="ext4", *options):
        checked(["mount", "-t", system, *options, self.device, self.folder])
        return self.folder

    def umount(self):
        retry(lambda: checked(["umount", self.folder]))

    def fresh_ext4(self):
        """For `with`: an empty ext4, mounted until the end of the block."""
        self.reset()
        checked(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.device])
        self.mount()
        return self

    def fresh_volume(self, program):
        """The device with an empty volume on it."""
        self.reset()
        checked([program, "mkfs", self.device])
        return self.device

    def __enter__(self):
        return self.folder

    def __exit__(self, *_):
        self.umount()

    def remove(self):
        if self.number is None:
            return
        if os.path.ismount(self.folder):
            self.umount()
        os.rmdir(self.folder)
        control = pathlib.Path("/sys/class/zram-control/hot_remove")
        retry(lambda: control.write_text(self.number))
        self.number = None


def exit_on_signals(code=143):
    """Exits on signals, so that functions registered with atexit run."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: sys.exit(code))


class Targets:
    """The targets of the figures."""

    def __init__(self, figures, program, disk):
        self.program = program
        self.disk, self.folder = disk, None
        self.needed = {figure["on"] for figure in figures}
        self.disks = []
        self.wants_kernel = any("of K" in figure["what"] or figure["name"] == "file-systems" for figure in figures)
        # A file on each of the kernel's file systems, or the reason why there are none.
        self.kernel, self.no_kernel = {}, None
        # The side compared with V is a file on the same file system.
        if any("on ext4" in figure["what"] for figure in figures):
            self.needed.add("W")
        # Figures without a target, and those of a guest, have an empty path.
        self.paths = {"null": "null:1g", "sim": "sim:1g,latency=80us,units=64", "-": "", "null_blk": "", "nvme": ""}

    def __enter__(self):
        exit_on_signals(130)
        atexit.register(self.remove)
        if self.needed & {"F", "W", "V"}:
            self.make_files()
        if "D" in self.needed:
            self.folder = tempfile.TemporaryDirectory(prefix="uringfs-bench-", dir=self.disk)
            self.paths["D"] = f"{self.folder.name}/D"
            write_bytes(self.paths["D"], os.urandom(1 << 20), 4 * GIB)
        if "Z" in self.needed:
            self.paths["Z"] = self.add(FILE_SYSTEM).device
            write_zeros(self.paths["Z"], FILE_SYSTEM)
        if self.wants_kernel:
            self.make_kernel_files()
        if "VZ" in self.needed:
            self.paths["VZ"] = self.add(VOLUME).device
            self.make_volume(self.paths["VZ"])
        return self

    def __exit__(self, *_):
        self.remove()

    def path(self, name):
        return self.paths[name]

    def describe(self):
        paths = [f"{name} = {path}" for name, path in self.paths.items() if path]
        return ", ".join([*paths, *([f"K = {' '.join(self.kernel.values())}"] if self.kernel else [])])

    def kinds(self, names):
        """Descriptions of these targets."""
        return {name: self.disk_kind() if name == "D" else KINDS[name] for name in sorted(names) if name in KINDS}

    def disk_kind(self):
        found = checked(["findmnt", "-no", "SOURCE,FSTYPE", "-T", self.disk]).split()
        return "a file of 4 GiB on {1} on {0}".format(*found)

    def add(self, size):
        self.disks.append(RamDisk(size))
        return self.disks[-1]

    def make_files(self):
        disk = self.add(3 * GIB + VOLUME)
        checked(["mkfs.ext4", "-q", disk.device])
        folder = disk.mount()
        for name in ("F", "W"):
            self.paths[name] = f"{folder}/{name}"
            write_zeros(self.paths[name], GIB)
        if "V" in self.needed:
            self.paths["V"] = f"{folder}/V"
            self.make_volume(self.paths["V"], "--size", str(VOLUME))
        # Remount, so that the journal is empty and nothing is dirty.
        disk.umount()
        disk.mount()

    def make_kernel_files(self):
        """Creates all of them or none: the best of an incomplete set is no figure."""
        try:
            for system, options in KERNEL.items():
                disk = self.add(FILE_SYSTEM)
                checked([f"mkfs.{system}", "-q", disk.device])
                path = f"{disk.mount(system, *options)}/file"
                write_zeros(path, GIB)
                self.kernel[system] = path
        except OSError as problem:
            self.kernel, self.no_kernel = {}, f"{problem} (scripts/setup bench installs mkfs.xfs and mkfs.btrfs)"

    def make_volume(self, path, *options):
        """Creates a volume with two files. One is written in order and has one extent. The other is written in random
        order, so that hardly two adjacent parts are contiguous."""
        checked([self.program, "mkfs", path, *options])
        for file, rw in (("whole", "write"), ("pieces", "randwrite")):
            keys = [f"--volume={path}", f"--filename={file}", f"--rw={rw}", "--bs=1m", "--size=1g"]
            keys += ["--name=fill", "--zero_buffers=1", "--fallocate=none", "--end_fsync=1"]
            checked([self.program, "bench", "run", *keys])

    def remove(self):
        if self.folder:
            self.folder.cleanup()
        while self.disks:
            self.disks.pop().remove()


def retry(action):
    """Retries for five seconds: device watchers may hold a device, and killed processes may still be ending."""
    deadline = time.monotonic() + 5
    while True:
        try:
            return action()
        except OSError as problem:
            if time.monotonic() > deadline:
                sys.exit(f"the clean-up failed: {problem}")
            time.sleep(0.1)


def write_zeros(path, size):
    write_bytes(path, bytes(1 << 20), size)


def write_bytes(path, chunk, size):
    """Allocates the space if the path is a file, then writes chunks of one MiB."""
    with open(path, "wb") as file:
        if not stat.S_ISBLK(os.fstat(file.fileno()).st_mode):
            os.posix_fallocate(file.fileno(), 0, size)
        for _ in range(size >> 20):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def checked(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
