"""The file system of fsspec: all 137 cases of its own suite for file systems, none skipped, and what only ours has."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import threading
import urllib.parse

import fsspec
import fsspec.tests.abstract as abstract
import pandas
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

import uringfs
from uringfs import _volume
from uringfs.fsspec import UringFileSystem


class Fixtures(abstract.AbstractFixtures):
    """Our file system for fsspec's suite, which runs as for `file://`."""

    @pytest.fixture(scope="class")
    def fs(self, tmp_path_factory):
        path = tmp_path_factory.mktemp("fsspec") / "uringfs.img"
        with uringfs.Volume.create(path, 64 << 20) as volume:
            yield UringFileSystem(volume, auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, fs):
        yield "/root"
        if fs.exists("/root"):
            fs.rm("/root", recursive=True)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


@pytest.fixture
def fs(volume):
    return UringFileSystem(volume)


@pytest.fixture
def frame():
    return pandas.DataFrame({"number": range(1000), "text": [f"row {row}" for row in range(1000)]})


def test_a_url_names_the_volume_and_the_path(image, frame):
    url = f"uringfs://{image}:/tables/first.parquet"
    fs, path = fsspec.url_to_fs(url)
    assert (fs.volume.device_path, path) == (str(image), "/tables/first.parquet")
    assert fs.unstrip_protocol(path) == url
    fs.makedirs("/tables")
    frame.to_parquet(url)
    assert pandas.read_parquet(url).equals(frame)
    frame.to_csv(f"uringfs://{image}:/tables/first.csv", index=False)
    assert pandas.read_csv("uringfs:///tables/first.csv", storage_options={"volume": str(image)}).equals(frame)
    assert fsspec.get_filesystem_class("uringfs") is UringFileSystem
    assert urllib.parse.urlsplit(url).scheme == fs.protocol
    with fsspec.open(f"uringfs://{image}:/text.gz", "wt", compression="gzip") as file:
        file.write("compressed")
    with fsspec.open(f"uringfs://{image}:/text.gz", "rt", compression="gzip") as file:
        assert file.read() == "compressed"
    fs.volume.close()


def test_pyarrow_writes_and_reads_datasets(fs, frame):
    table = pyarrow.Table.from_pandas(frame)
    rows = {"max_rows_per_file": 100, "max_rows_per_group": 100}
    pyarrow.dataset.write_dataset(table, "/set", filesystem=fs, format="parquet", **rows)
    assert len(fs.glob("/set/*.parquet")) == 10
    found = pyarrow.dataset.dataset("/set", filesystem=fs).to_table(filter=pyarrow.dataset.field("number") < 500)
    assert found.sort_by("number").equals(table.slice(0, 500))


def test_threads_of_a_process_share_the_open_volume(image):
    found = []

    def use():
        fs = fsspec.filesystem("uringfs", volume=str(image))
        found.append(fs.volume)
        fs.pipe_file(f"/{threading.get_ident()}", b"x")

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(volume) for volume in found}) == 1
    assert not found[0].closed
    found[0].close()
    again = fsspec.filesystem("uringfs", volume=str(image)).volume
    assert not again.closed and len(again.listdir()) == 4
    again.close()


def test_a_volume_is_found_by_the_path_that_it_had_when_it_was_opened(tmp_path, monkeypatch):
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        fsspec.filesystem("uringfs", volume=uringfs.Volume.create("disk.img", 32 << 20)).pipe_file(f"/{name}", b"")
    second = fsspec.filesystem("uringfs", volume="disk.img")
    monkeypatch.chdir(tmp_path / "first")
    first = fsspec.filesystem("uringfs", volume="disk.img")
    assert [fs.ls("/", detail=False) for fs in (first, second)] == [["/first"], ["/second"]]
    assert pickle.loads(pickle.dumps(second)).volume is second.volume
    assert fsspec.url_to_fs(second.unstrip_protocol("/second"))[0].volume is second.volume
    first.volume.close()
    second.volume.close()


def test_a_uri_is_the_path_of_its_volume():
    for uri in ("nbd://host/disk", "nbd+unix:///disk?socket=/run/nbd.sock", "rbd:pool/image"):
        assert _volume.real_path(uri) == uri


def read_in_worker(fs):
    return fs.cat_file("/file"), fs.volume.read_only


def test_a_file_system_is_sent_to_workers_that_are_spawned(image):
    with uringfs.Volume(image) as volume:
        fs = UringFileSystem(volume)
        fs.pipe_file("/file", b"content")
        assert pickle.loads(pickle.dumps(fs)).volume is volume
    with uringfs.Volume(image, read_only=True) as volume:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(read_in_worker, [UringFileSystem(volume)]) == (b"content", True)


def test_ranges_are_read_at_once(fs):
    fs.pipe({"/a": bytes(range(250)), "/b": b"0123456789"})
    paths, starts, ends = ["/a", "/b", "/a", "/b", "/b"], [0, -3, 100, 2, 8], [3, None, 101, 4, 100]
    assert fs.cat_ranges(paths, starts, ends) == [b"\0\1\2", b"789", b"d", b"23", b"89"]
    assert fs.cat_ranges(["/a", "/b"], 1, 3) == [b"\1\2", b"12"]
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["/missing"], 0, 1, on_error="raise")
    mixed = fs.cat_ranges(["/missing", "/b"], 0, 1)
    assert isinstance(mixed[0], FileNotFoundError) and mixed[1] == b"0"
    assert fs.cat_file("/b", -4, -1) == b"678" and fs.cat_file("/b", 5, 2) == b""


def test_ranges_are_longer_than_a_read_may_be(fs, monkeypatch):
    monkeypatch.setattr("uringfs.fsspec._MAX_RANGE", 4)
    fs.pipe_file("/file", b"0123456789")
    starts, ends = [0, 1, 2, 5, 3], [None, 5, 10, 5, 4]
    assert fs.cat_ranges(["/file"] * 5, starts, ends) == [b"0123456789", b"1234", b"23456789", b"", b"3"]
    with fs.volume.open_file("/file", "r+") as file:
        file.truncate((1 << 30) + 1)
        with pytest.raises(ValueError, match="1 GiB"):
            file.read_ranges([0], (1 << 30) + 1, bytearray(1))


def test_blocks_are_read_of_files_that_have_a_size(fs):
    fs.pipe_file("/file", b"a\nb\nc\n")
    assert fs.read_block("/file", 0, 3, b"\n") == b"a\nb\n"
    assert fs.tail("/file", 3) == b"\nc\n" and fs.head("/file", 3) == b"a\nb"
    with fs.open("/file", "rb") as file:
        assert (file.size, file.readline(), file.mode) == (6, b"a\n", "rb")
        fs.volume.close()
        assert file.closed


def test_a_text_file_has_its_last_characters_when_the_volume_closes_before_it(fs, image):
    fs.auto_mkdir = True
    text = fs.open("/new/text", "w", encoding="utf-16-le", newline="\r\n")
    text.write("x\n")
    fs.volume.close()
    assert text.closed
    with fsspec.filesystem("uringfs", volume=image).volume as volume:
        assert (volume / "new" / "text").read_bytes() == b"x\0\r\0\n\0"


def test_a_transaction_shows_its_files_at_its_end(fs):
    with fs.transaction:
        with fs.open("/first", "wb") as file:
            file.write(b"1")
        with fs.open("/second", "wb") as file:
            file.write(b"2")
        assert not fs.exists("/first") and not fs.exists("/second")
    assert fs.cat(["/first", "/second"]) == {"/first": b"1", "/second": b"2"}
    with pytest.raises(RuntimeError, match="on purpose"), fs.transaction:
        with fs.open("/third", "wb") as file:
            file.write(b"3")
        raise RuntimeError("on purpose")
    assert sorted(fs.ls("/", detail=False)) == ["/first", "/second"]


def test_all_files_that_a_transaction_writes_appear_at_its_end(fs, tmp_path):
    (tmp_path / "source").write_bytes(b"put")
    with fs.transaction:
        fs.pipe_file("/piped", b"piped")
        fs.pipe({"/both": b"both"})
        fs.put_file(tmp_path / "source", "/put")
        # Neither is closed: the first by its writer, the second by its compressor.
        left_open = fs.open("/open", "wb")
        left_open.write(b"open")
        with fs.open("/packed", "wb", compression="gzip") as file:
            file.write(b"packed")
        with fs.open("/new", "xb") as file:
            file.write(b"new")
        assert not any(fs.exists(path) for path in ("/piped", "/both", "/put", "/open", "/packed", "/new"))
    assert left_open.closed
    paths = ["/both", "/new", "/open", "/packed", "/piped", "/put"]
    assert sorted(fs.ls("/", detail=False)) == paths
    with fs.open("/packed", "rb", compression="gzip") as file:
        assert file.read() == b"packed"
    assert [fs.cat_file(path) for path in paths if path != "/packed"] == [b"both", b"new", b"open", b"piped", b"put"]


def test_a_transaction_refuses_what_it_cannot_undo_or_what_exists_by_now(fs):
    fs.pipe_file("/log", b"before")
    with fs.transaction, pytest.raises(ValueError, match="cannot append to /log"):
        fs.open("/log", "ab")
    for mode in ("r+b", "w+b", "x+b", "w+"):
        with fs.transaction, pytest.raises(ValueError, match="cannot update /log"):
            fs.open("/log", mode)
    assert fs.cat_file("/log") == b"before"
    with pytest.raises(FileExistsError), fs.transaction:
        with fs.open("/new", "xb") as file:
            file.write(b"of the transaction")
        fs.volume.open("/new", "x").close()
    assert fs.cat_file("/new") == b""
    assert sorted(fs.ls("/", detail=False)) == ["/log", "/new"]


def test_links_that_lead_nowhere_have_attributes(fs):
    for name, target in (("broken", "missing"), ("loop", "loop"), ("long", "x" * 300)):
        fs.volume.symlink(target, name)
        info = fs.info(f"/{name}")
        assert (info["type"], info["islink"], info["destination"]) == ("other", True, target)
        assert fs.lexists(f"/{name}") and not fs.exists(f"/{name}") and not fs.isfile(f"/{name}")
    assert len(fs.ls("/")) == len(fs.find("/")) == 3


def test_links_to_directories_are_not_followed_by_a_walk(fs, tmp_path):
    fs.mkdir("/d")
    fs.pipe_file("/d/file", b"text")
    for name in ("a", "b"):
        fs.volume.symlink(".", f"/d/{name}")
    paths = ["/d/a", "/d/b", "/d/file"]
    assert fs.find("/d") == fs.glob("/d/**")[1:] == paths
    assert sorted(fs.du("/d", total=False)) == paths
    assert fs.isdir("/d/a") and fs.ls("/d/a", detail=False) == ["/d/a/a", "/d/a/b", "/d/a/file"]
    fs.get("/d", str(tmp_path / "d"), recursive=True)
    assert (tmp_path / "d" / "file").read_bytes() == b"text"


def test_a_directory_moves_into_one_that_exists(fs):
    fs.mkdir("/a/x")
    fs.mkdir("/dir")
    fs.mv("/a", "/dir")
    fs.mv("/dir", "/dir")
    assert [path for path, _, _ in fs.volume.walk()] == ["/", "/dir", "/dir/a", "/dir/a/x"]
    fs.symlink("/nowhere", "/broken")
    fs.mv("/broken", "/dir/a")
    assert fs.find("/") == ["/dir/a/broken"]


def test_names_and_attributes_are_those_of_the_volume(fs):
    fs.mkdir("/a/b")
    with pytest.raises(FileExistsError):
        fs.mkdir("/a/b")
    with pytest.raises(FileNotFoundError):
        fs.mkdir("/x/y", create_parents=False)
    with pytest.raises(FileNotFoundError):
        fs.open("/x/y", "wb")
    fs.pipe_file("/a/file", b"12345")
    fs.symlink("/a/file", "/a/link")
    fs.symlink("/nowhere", "/a/broken")
    fs.link("/a/file", "/a/hard")
    info = fs.info("/a/link")
    assert (info["type"], info["size"], info["islink"], info["destination"]) == ("file", 5, True, "/a/file")
    assert fs.info("/a/broken")["type"] == "other" and fs.lexists("/a/broken") and not fs.exists("/a/broken")
    assert fs.islink("/a/link") and fs.info("/a/hard")["nlink"] == 2
    fs.chmod("/a/file", 0o600)
    assert fs.info("/a/file")["mode"] & 0o777 == 0o600
    before = fs.ukey("/a/file")
    fs.touch("/a/file", truncate=False)
    assert fs.size("/a/file") == 5 and fs.ukey("/a/file") != before
    fs.touch("/a/file")
    assert fs.size("/a/file") == 0
    assert fs.modified("/a/file").timestamp() == pytest.approx(fs.created("/a/file").timestamp(), abs=60)
    fs.mv("/a/hard", "/a/b")
    assert fs.find("/a") == ["/a/b/hard", "/a/broken", "/a/file", "/a/link"]
    with pytest.raises(ValueError, match="recursive"):
        fs.rm("/a")
    fs.rm("/a", recursive=True)
    assert fs.ls("/") == []
    fs.sync()


def test_files_are_copied_out_and_in_with_progress(fs, tmp_path):
    (tmp_path / "source").write_bytes(bytes(range(256)) * 10_000)
    callback = fsspec.callbacks.Callback()
    fs.put_file(tmp_path / "source", "/file", callback=callback)
    assert callback.size == callback.value == 2_560_000
    callback = fsspec.callbacks.Callback()
    fs.get_file("/file", str(tmp_path / "target"), callback=callback)
    assert callback.size == callback.value == 2_560_000
    assert (tmp_path / "source").read_bytes() == (tmp_path / "target").read_bytes()
    memory = io.BytesIO()
    fs.get_file("/file", memory)
    assert memory.getvalue() == (tmp_path / "source").read_bytes()


def test_a_file_system_needs_a_volume_and_reads_only_if_the_volume_does(tmp_path):
    with pytest.raises(ValueError, match="write uringfs://VOLUME:/PATH"):
        fsspec.open("uringfs://disk.img/table", "rb").open()
    path = str(tmp_path / "disk.img")
    with uringfs.Volume.create(path, 64 << 20):
        with pytest.raises(ValueError, match="open for writing in this process"):
            UringFileSystem(path, read_only=True)
    with uringfs.Volume(path, read_only=True):
        assert UringFileSystem(path, read_only=True).ls("/", detail=False) == []
        assert UringFileSystem(path).volume.read_only
