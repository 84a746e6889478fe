"""Paths: compared with pathlib's."""

from __future__ import annotations

import errno
import os
from pathlib import Path as SystemPath

import pytest

import uringfs


@pytest.fixture(params=["volume", "system"])
def root(request, tmp_path):
    """A new directory: in a volume, and by pathlib. The same tests hold for both."""
    if request.param == "system":
        (tmp_path / "root").mkdir()
        yield tmp_path / "root"
        return
    with uringfs.Volume.create(tmp_path / "uringfs.img", 64 << 20) as volume:
        volume.mkdir("/root")
        yield volume / "root"


def test_content_is_written_and_read(root):
    file = root / "file"
    assert file.write_bytes(b"bytes") == 5
    assert file.read_bytes() == b"bytes"
    assert file.write_text("text\n", newline="\r\n") == 5
    assert file.read_text() == "text\n" and file.read_bytes() == b"text\r\n"
    with file.open("a") as stream:
        stream.write("more")
    assert file.read_text() == "text\nmore"
    assert file.stat().st_size == 10 and file.lstat().st_size == 10
    for write, data in ((file.write_bytes, "text"), (file.write_text, b"bytes")):
        with pytest.raises(TypeError):
            write(data)
    assert file.stat().st_size == 10
    with pytest.raises(FileNotFoundError):
        (root / "missing").read_bytes()


def test_names_are_created_and_removed(root):
    deep = root / "a" / "b" / "c"
    with pytest.raises(FileNotFoundError):
        deep.mkdir()
    deep.mkdir(parents=True)
    deep.mkdir(exist_ok=True)
    deep.mkdir(parents=True, exist_ok=True)
    with pytest.raises(FileExistsError):
        deep.mkdir()
    file = deep / "file"
    file.touch()
    file.touch()
    with pytest.raises(FileExistsError):
        file.touch(exist_ok=False)
    moved = file.rename(root / "moved")
    assert moved == root / "moved" and moved.is_file() and not file.exists()
    (root / "soft").symlink_to("moved")
    (root / "hard").hardlink_to(moved)
    assert (root / "soft").is_symlink() and os.fspath((root / "soft").readlink()) == "moved"
    assert (root / "hard").samefile(moved) and (root / "soft").samefile(moved)
    assert not (root / "a").is_file() and (root / "a").is_dir() and not moved.is_dir()
    (root / "hard").unlink()
    moved.replace(root / "other").unlink()
    assert not (root / "soft").exists() and (root / "soft").is_symlink()
    with pytest.raises(FileNotFoundError):
        moved.unlink()
    moved.unlink(missing_ok=True)
    deep.rmdir()
    with pytest.raises(OSError):
        (root / "a").rmdir()
    file = root / "mode"
    file.touch()
    file.chmod(0o600)
    assert file.stat().st_mode & 0o777 == 0o600


def test_listings_and_patterns_find_the_same_names(root):
    for name in ("a/one.txt", "a/two.bin", "a/deep/three.txt", "b/four.txt", "five.txt", "six"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)

    def names(paths):
        return sorted(path.relative_to(root).as_posix() for path in paths)

    assert names(root.iterdir()) == ["a", "b", "five.txt", "six"]
    assert names(root.glob("*.txt")) == ["five.txt"]
    assert names(root.glob("*/*.txt")) == ["a/one.txt", "b/four.txt"]
    assert names(root.glob("a/one.txt")) == ["a/one.txt"]
    assert names(root.glob("a/missing")) == []
    assert names(root.glob("**/*.txt")) == names(root.rglob("*.txt"))
    assert names(root.rglob("*.txt")) == ["a/deep/three.txt", "a/one.txt", "b/four.txt", "five.txt"]
    assert names(root.glob("[ab]/t*")) == ["a/two.bin"]
    with pytest.raises((ValueError, NotImplementedError)):
        list(root.glob("/absolute"))


def test_walk_is_that_of_pathlib(root):
    if not hasattr(root, "walk"):
        pytest.skip("pathlib has no walk before Python 3.12")
    (root / "a" / "inner").mkdir(parents=True)
    (root / "a" / "file").touch()
    (root / "b").mkdir()
    (root / "link").symlink_to("a")
    (root / "loop").symlink_to("loop")

    def listed(**options):
        names = []
        for directory, folders, files in root.walk(**options):
            folders.sort()
            names.append((directory.relative_to(root).as_posix(), list(folders), sorted(files)))
        return names

    a, b, inner = ("a", ["inner"], ["file"]), ("b", [], []), ("a/inner", [], [])
    assert listed() == [(".", ["a", "b"], ["link", "loop"]), a, inner, b]
    up = listed(top_down=False)
    assert up[-1] == (".", ["a", "b"], ["link", "loop"]) and up.index(inner) < up.index(a)
    link = [("link", ["inner"], ["file"]), ("link/inner", [], [])]
    assert listed(follow_symlinks=True) == [(".", ["a", "b", "link"], ["loop"]), a, inner, b, *link]
    failures = []
    assert list((root / "missing").walk(on_error=failures.append)) == list((root / "missing").walk()) == []
    assert isinstance(failures[0], FileNotFoundError)
    # Names that the caller removes are not visited.
    visited = []
    for directory, folders, _ in root.walk():
        visited.append(directory.name)
        folders.clear()
    assert visited == [root.name]


def test_parts_are_those_of_pathlib(volume):
    ours, theirs = volume.path("/a/b/c.tar.gz"), SystemPath("/a/b/c.tar.gz")
    for part in ("name", "stem", "suffix", "suffixes", "parts"):
        assert getattr(ours, part) == getattr(theirs, part)
    assert str(ours.parent) == str(theirs.parent)
    assert [str(parent) for parent in ours.parents] == [str(parent) for parent in theirs.parents]
    assert str(ours.with_name("d")) == "/a/b/d"
    assert str(ours.with_stem("d")) == "/a/b/d.gz"
    assert str(ours.with_suffix(".zip")) == "/a/b/c.tar.zip"
    assert ours.relative_to("/a").as_posix() == "b/c.tar.gz"
    assert ours.is_relative_to(ours.parent) and not ours.is_relative_to("/x")
    assert ours.match("*.gz") and ours.joinpath("x", "y") == ours / "x" / "y"
    assert volume / "a" / "b" == volume.path("a/b") == volume.path(SystemPath("a")).joinpath("b")
    assert volume / "a" < volume / "b" and len({volume / "a", volume.path("/a")}) == 1
    assert (volume / "a") != "/a"
    assert [(str(d), f, n) for d, f, n in (volume / "").walk()] == [("/", [], [])]


def test_a_path_is_not_one_of_the_system(volume):
    path = volume / "file"
    path.write_text("in the volume")
    assert volume.listdir(volume.path("/")) == ["file"]
    with pytest.raises(TypeError):
        open(path)
    assert repr(path) == "uringfs.Path('/file')"


def test_a_path_of_another_volume_is_refused(volume, tmp_path):
    with uringfs.Volume.create(tmp_path / "backup.img", 64 << 20) as backup:
        for each in (volume, backup):
            each.makedirs("/folder/empty")
            (each / "file").write_text("content")
        path, folder = volume / "file", volume / "folder"
        before = list(backup.walk())
        calls = [
            lambda: backup.remove(path),
            lambda: backup.unlink(path),
            lambda: backup.rmtree(folder),
            lambda: backup.rmdir(folder / "empty"),
            lambda: backup.open(path, "w"),
            lambda: backup.open_file(path, "w"),
            lambda: backup.listdir(folder),
            lambda: backup.scandir(folder),
            lambda: list(backup.walk(folder)),
            lambda: backup.mkdir(volume / "new"),
            lambda: backup.makedirs(volume / "new" / "inner"),
            lambda: backup.stat(path),
            lambda: backup.lstat(path),
            lambda: backup.exists(path),
            lambda: backup.isfile(path),
            lambda: backup.getsize(path),
            lambda: backup.readlink(path),
            lambda: backup.symlink(path, "/new"),
            lambda: backup.copyfile(path, "/new"),
            lambda: backup.copyfile("/file", volume / "new"),
            lambda: backup.rename(path, volume / "new"),
            lambda: backup.chmod(path, 0o600),
            lambda: backup.utime(path),
            lambda: backup.path(path),
            lambda: backup / path,
            lambda: backup.path("folder") / path,
            lambda: (backup / "file").relative_to(folder),
        ]
        for number, call in enumerate(calls):
            with pytest.raises(ValueError, match=r"uringfs\.img.*backup\.img") as refused:
                call()
            assert "pass the path's text" in str(refused.value), number
        for move in (backup.rename, backup.replace, backup.link):
            for source, target in ((path, "/new"), ("/file", volume / "new")):
                with pytest.raises(OSError, match=r"copy the content") as refused:
                    move(source, target)
                assert (refused.value.errno, refused.value.filename) == (errno.EXDEV, "/file")
                assert refused.value.filename2 == "/new"
        for move in (path.rename, path.replace, path.hardlink_to):
            with pytest.raises(OSError) as refused:
                move(backup / "new")
            assert refused.value.errno == errno.EXDEV
        assert not path.samefile(backup / "file") and path.samefile(volume / "file")
        assert not path.is_relative_to(backup / "")
        assert list(backup.walk()) == before and (backup / "file").read_text() == "content"
