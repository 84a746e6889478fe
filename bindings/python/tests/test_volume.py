"""Volumes: opening and closing, names, attributes, and errors."""

from __future__ import annotations

import errno
import gc
import os
import stat
import subprocess
import sys
import threading
import weakref

import pytest

import uringfs
from uringfs import _volume


def test_a_file_is_written_and_read_again_after_the_volume_was_closed(image):
    with uringfs.Volume(image) as volume:
        with volume.open("/greeting", "w") as file:
            file.write("hello\nworld\n")
    with uringfs.Volume(image) as volume:
        with volume.open("/greeting") as file:
            assert list(file) == ["hello\n", "world\n"]
        assert volume.listdir() == ["greeting"]


def test_a_new_volume_has_its_label_size_and_identity(tmp_path):
    path = tmp_path / "uringfs.img"
    with uringfs.Volume.create(path, 64 << 20, label="photos") as volume:
        assert volume.label == "photos"
        assert not volume.read_only
        assert volume.device_path == str(path)
        statistics = volume.statistics()
        assert statistics.blocks == (64 << 20) // 4096
        assert 0 < statistics.free_blocks < statistics.blocks
        identity = volume.uuid
    assert volume.closed and "closed" in repr(volume)
    with uringfs.Volume(path, read_only=True, cache_bytes=1 << 20) as volume:
        assert volume.uuid == identity
        assert volume.read_only
        with pytest.raises(OSError, match="reading only") as refused:
            volume.mkdir("/new")
        assert refused.value.errno == errno.EROFS
    with pytest.raises(FileExistsError, match="overwrite=True"):
        uringfs.Volume.create(path, 64 << 20)
    with uringfs.Volume.create(path, overwrite=True) as volume:
        assert volume.uuid != identity


def test_errors_have_errno_and_path(volume):
    with pytest.raises(FileNotFoundError) as missing:
        volume.open("/missing/file")
    assert missing.value.errno == errno.ENOENT
    assert missing.value.filename == "/missing/file"
    assert "'missing' does not exist" in str(missing.value)
    volume.mkdir("/full")
    volume.open("/full/file", "w").close()
    with pytest.raises(FileExistsError):
        volume.mkdir("/full")
    with pytest.raises(FileExistsError):
        volume.open("/full/file", "x")
    with pytest.raises(IsADirectoryError):
        volume.open("/full", "w")
    with pytest.raises(NotADirectoryError):
        volume.listdir("/full/file")
    with pytest.raises(OSError) as full:
        volume.rmdir("/full")
    assert full.value.errno == errno.ENOTEMPTY
    with pytest.raises(FileNotFoundError) as missing:
        volume.rename("/missing", "/other")
    assert (missing.value.filename, missing.value.filename2) == ("/missing", "/other")


def test_a_full_volume_says_so(volume):
    with volume.open_file("/big", "w") as file, pytest.raises(OSError, match="full") as full:
        for chunk in range(1000):
            file.write_at(bytes(1 << 20), chunk << 20)
    assert full.value.errno == errno.ENOSPC
    volume.remove("/big")
    volume.sync()
    with volume.open("/small", "w") as file:
        file.write("fits")


def test_what_is_no_volume_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"uringfs\.Volume\.create") as missing:
        uringfs.Volume(tmp_path / "missing")
    assert missing.value.filename == str(tmp_path / "missing")
    text = tmp_path / "text"
    text.write_text("no volume\n" * 10_000)
    with pytest.raises(OSError) as refused:
        uringfs.Volume(text)
    assert refused.value.errno == errno.EINVAL


def test_a_closed_volume_refuses_calls_and_closes_its_files(image):
    volume = uringfs.Volume(image)
    buffered = volume.open("/buffered", "wb")
    buffered.write(b"in the buffer of Python")
    file = volume.open_file("/file", "w")
    volume.close()
    volume.close()
    assert buffered.closed and file.closed
    with pytest.raises(ValueError, match="closed volume"):
        volume.listdir()
    with pytest.raises(ValueError, match="closed file"):
        file.write_at(b"x", 0)
    with uringfs.Volume(image) as volume:
        assert (volume / "buffered").read_bytes() == b"in the buffer of Python"


def test_a_reader_beside_a_writer_is_told_who_it_is_and_that_there_are_mounts(volume):
    opens = "import sys, uringfs; uringfs.Volume(sys.argv[1], read_only=True)"
    command = [sys.executable, "-c", opens, volume.device_path]
    other = subprocess.run(command, capture_output=True, text=True)
    assert other.returncode == 1
    line = other.stderr.splitlines()[-1]
    assert line.startswith("OSError: [Errno 16] another program has the volume open")
    assert str(os.getpid()) in line and "`uringfs mount`" in line
    with pytest.raises(OSError, match="use that `Volume`"):
        uringfs.Volume(volume.device_path)


def test_readers_share_a_volume(image):
    opens = "import sys, uringfs; print(uringfs.Volume(sys.argv[1], read_only=True).listdir())"
    with uringfs.Volume(image) as volume:
        volume.mkdir("/shared")
    with uringfs.Volume(image, read_only=True):
        with pytest.raises(OSError, match="open for reading only; close that `Volume` first"):
            uringfs.Volume(image)
        command = [sys.executable, "-c", opens, str(image)]
        other = subprocess.run(command, capture_output=True, text=True)
    assert (other.returncode, other.stdout, other.stderr) == (0, "['shared']\n", "")


def test_names_are_created_renamed_and_removed(volume):
    volume.makedirs("/a/b/c")
    with pytest.raises(FileExistsError):
        volume.makedirs("/a/b/c")
    volume.makedirs("/a/b/c", exist_ok=True)
    volume.makedirs("relative/too/")
    assert volume.isdir("/relative/too")
    volume.open("/a/file", "w").close()
    with pytest.raises(FileExistsError):
        volume.makedirs("/a/file", exist_ok=True)
    volume.rename("/a/file", "/a/b/renamed")
    volume.link("/a/b/renamed", "/a/hard")
    volume.symlink("b/renamed", "/a/soft")
    assert volume.stat("/a/hard").st_nlink == 2
    assert volume.readlink("/a/soft") == "b/renamed"
    assert volume.islink("/a/soft") and volume.isfile("/a/soft")
    assert not volume.islink("/a/hard") and not volume.isdir("/missing")
    volume.unlink("/a/hard")
    volume.replace("/a/b/renamed", "/a/soft")
    assert not volume.islink("/a/soft")
    volume.rmdir("/a/b/c")
    assert volume.exists("/a/b") and not volume.exists("/a/b/c")
    volume.rmtree("/a")
    assert volume.listdir("/") == ["relative"]


def test_attributes_are_those_of_os_stat(volume):
    with volume.open("/file", "wb", permissions=0o600) as file:
        file.write(bytes(5000))
    found = volume.stat("/file")
    assert isinstance(found, os.stat_result)
    assert stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600
    assert (found.st_size, found.st_nlink, found.st_blksize) == (5000, 1, 4096)
    volume.utime("/file", ns=(1_000_000_001, 2_000_000_002))
    volume.chmod("/file", 0o640)
    found = volume.stat("/file")
    assert (found.st_atime_ns, found.st_mtime_ns) == (1_000_000_001, 2_000_000_002)
    assert found.st_mtime == pytest.approx(2.000000002) and found[stat.ST_MTIME] == 2
    assert stat.S_IMODE(found.st_mode) == 0o640
    volume.utime("/file", (3.5, 4.5))
    assert volume.stat("/file").st_mtime_ns == 4_500_000_000
    volume.utime("/file")
    assert volume.stat("/file").st_mtime > 1e9
    assert volume.getsize("/file") == 5000
    assert volume.copyfile("/file", "/copy") == 5000
    assert volume.stat("/copy").st_size == 5000


def test_listings_have_types_and_walk_is_that_of_os(volume, tmp_path):
    for root in (volume.path("/"), tmp_path / "tree"):
        root.mkdir(exist_ok=True)
        (root / "b" / "inner").mkdir(parents=True)
        (root / "a").mkdir()
        (root / "a" / "one").write_text("1")
        (root / "b" / "inner" / "two").write_text("22")
        (root / "link").symlink_to("a")
    with volume.scandir("/") as entries:
        found = {entry.name: (entry.is_dir(), entry.is_symlink(), entry.path) for entry in entries}
    assert found == {"a": (True, False, "/a"), "b": (True, False, "/b"), "link": (True, True, "/link")}
    entry = next(entry for entry in volume.scandir("/a"))
    assert entry.is_file() and entry.stat().st_size == 1 and entry.inode() == entry.stat().st_ino

    def tree(walk, top):
        return sorted((os.path.relpath(d, top), sorted(f), sorted(n)) for d, f, n in walk)

    for topdown in (True, False):
        for follow in (True, False):
            ours = tree(volume.walk("/", topdown, followlinks=follow), "/")
            top = tmp_path / "tree"
            assert ours == tree(os.walk(top, topdown, followlinks=follow), top)
    failures = []
    assert list(volume.walk("/missing", onerror=failures.append)) == []
    assert isinstance(failures[0], FileNotFoundError)


def test_a_path_that_leads_nowhere_is_what_it_is_to_os(volume, tmp_path):
    links = {"broken": "missing", "loop": "loop", "long": "x" * 300, "through-a-file": "file/name"}
    names = [*links, "file", "missing", "file/name", "loop/name", "x" * 300, "zero\0byte", "/".join(["name"] * 1000)]
    tree = tmp_path / "tree"
    tree.mkdir()
    for root in (volume / "", tree):
        (root / "file").touch()
        for name, target in links.items():
            (root / name).symlink_to(target)
    for name in names:
        for call in ("exists", "lexists", "isfile", "isdir", "islink"):
            found, expected = getattr(volume, call)(name), getattr(os.path, call)(tree / name)
            assert found == expected, f"{call} of {name}"
        assert not (volume / name).is_dir()
        assert (volume / name).exists() == os.path.exists(tree / name)

    def kind(call):
        try:
            return call()
        except OSError as error:
            return error.errno

    def kinds(entries):
        return {entry.name: (kind(entry.is_dir), kind(entry.is_file), entry.is_symlink()) for entry in entries}

    assert kinds(volume.scandir()) == kinds(os.scandir(tree))
    assert [sorted(files) for _, _, files in volume.walk()] == [sorted(files) for _, _, files in os.walk(tree)]


def test_a_failure_is_not_a_path_that_leads_nowhere(image):
    with uringfs.Volume(image) as volume:
        (volume / "file").touch()
    for call in (volume.exists, volume.lexists, volume.isfile, volume.isdir, volume.islink):
        with pytest.raises(ValueError, match="closed volume"):
            call("/file")


def test_an_entry_is_a_path_of_its_volume(volume, tmp_path):
    volume.makedirs("/folder/inner")
    (volume / "folder" / "file").write_text("content")
    folder, = volume.scandir()
    entries = {entry.name: entry for entry in volume.scandir(folder)}
    assert volume.getsize(entries["file"]) == 7 and volume.isdir(entries["inner"])
    with volume.open(entries["file"]) as file:
        assert file.read() == "content"
    assert volume / entries["file"] == volume / "folder" / "file"
    assert (volume / "folder" / "file").samefile(entries["file"])
    with uringfs.Volume.create(tmp_path / "other.img", 32 << 20) as other:
        (other / "file").touch()
        with pytest.raises(ValueError, match="pass the path's text"):
            other.remove(entries["file"])
        assert not (other / "file").samefile(entries["file"])
    with pytest.raises(TypeError):
        open(entries["file"])
    volume.remove(entries["file"])
    volume.rmtree(folder)
    assert volume.listdir() == []


def test_times_are_rounded_as_by_os_utime(volume, tmp_path):
    for root in (volume / "", tmp_path):
        (root / "file").touch()
    for time in (1_700_000_000.1234567, 1_700_000_001, 1e9 + 1 / 3, 0.1, 2.9999999999, -1.25, -1e-10):
        volume.utime("/file", (time, 0))
        os.utime(tmp_path / "file", (time, 0))
        assert volume.stat("/file").st_atime_ns == os.stat(tmp_path / "file").st_atime_ns, time


def test_a_file_is_truncated_by_its_name_and_has_a_time_and_an_identity(volume):
    (volume / "file").write_bytes(b"content")
    volume.link("/file", "/other")
    volume.truncate("/file", 4)
    assert (volume / "other").read_bytes() == b"cont"
    volume.truncate("/file", 6)
    assert (volume / "other").read_bytes() == b"cont\0\0"
    with pytest.raises(FileNotFoundError):
        volume.truncate("/missing", 0)
    volume.utime("/file", (1, 2.5))
    assert volume.getmtime("/other") == 2.5
    (volume / "third").touch()
    assert volume.samefile("/file", "/other") and not volume.samefile("/file", "/third")


class Busy(weakref.WeakSet):
    """A set to which another thread adds something while it is iterated for the first time."""

    def __init__(self, items, add):
        super().__init__(items)
        self.add_more = add

    def __iter__(self):
        for item in super().__iter__():
            yield item
            add, self.add_more = self.add_more, lambda: None
            add()


def test_a_file_that_is_opened_while_its_volume_closes_is_closed(image):
    volume = uringfs.Volume(image)
    streams = [volume.open(f"/{number}", "w") for number in range(2)]
    refused = []

    def open_another():
        with pytest.raises(ValueError, match="closed volume"):
            refused.append(volume.open("/another", "w"))

    volume._streams = Busy(streams, open_another)
    for stream in streams:
        stream.write("text")
    volume.close()
    assert volume.closed and all(stream.closed for stream in streams) and refused == []
    with uringfs.Volume(image) as volume:
        assert [volume.getsize(f"/{number}") for number in range(2)] == [4, 4]


def test_a_volume_is_opened_while_another_thread_lists_the_open_ones(image, tmp_path, monkeypatch):
    volume, others = uringfs.Volume(image), []

    def open_another():
        others.append(uringfs.Volume.create(tmp_path / "other.img", 32 << 20))

    monkeypatch.setattr(_volume, "_open_volumes", Busy([volume], open_another))
    assert set(_volume.open_volumes()) == {volume, *others}
    for each in (volume, *others):
        each.close()


def test_names_that_are_not_utf8_come_back(volume):
    name = os.fsdecode(b"\xff\xfename")
    volume.open(f"/{name}", "w").close()
    assert volume.listdir() == [name]
    assert [entry.name for entry in volume.scandir()] == [name]
    with pytest.raises(FileNotFoundError) as missing:
        volume.stat(f"/{name}x")
    assert missing.value.filename == f"/{name}x"


def test_threads_share_a_volume(volume):
    failures = []

    def use(number):
        try:
            for turn in range(20):
                path = f"/{number}-{turn}"
                with volume.open(path, "wb") as file:
                    file.write(bytes([number]) * 10_000)
                with volume.open(path, "rb") as file:
                    assert file.read() == bytes([number]) * 10_000
                if turn % 2:
                    volume.remove(path)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(volume.listdir()) == 80


@pytest.mark.parametrize("direct", [False, True])
def test_a_volume_that_is_dropped_closes_with_its_last_file(image, direct):
    volume = uringfs.Volume(image)
    file = volume.open_file("/file", "w", direct=direct)
    del volume
    file.write_at(b"kept", 0)
    with pytest.raises(OSError, match="has the volume open already"):
        uringfs.Volume(image)
    del file
    gc.collect()
    with uringfs.Volume(image) as volume:
        assert (volume / "file").read_bytes() == b"kept"


def test_a_volume_that_is_dropped_can_be_opened_at_once(image):
    (uringfs.Volume(image) / "file").write_bytes(bytes(16 << 20))
    with uringfs.Volume(image) as volume:
        assert volume.getsize("/file") == 16 << 20


def test_a_volume_that_refers_to_its_file_closes_when_it_is_collected(image):
    volume = uringfs.Volume(image)
    volume.file = volume.open_file("/file", "w")
    volume.file.write_at(b"kept", 0)
    del volume
    gc.collect()
    with uringfs.Volume(image) as volume:
        assert (volume / "file").read_bytes() == b"kept"
