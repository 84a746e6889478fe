"""The types of the package, and the examples in its documentation."""

from __future__ import annotations

import doctest
import importlib
import pathlib
import subprocess
import sys

import pytest

import uringfs

#: A program whose types are right, and lines that are not.
RIGHT = """
import io
import uringfs
from uringfs.aio import AsyncFile

def use(volume: uringfs.Volume) -> None:
    text: io.TextIOWrapper = volume.open("/a")
    binary: io.BufferedReader = volume.open(volume / "a", "rb")
    raw: uringfs.RawFile = volume.open("/a", "rb", 0)
    file: uringfs.File = volume.open_file("/a", "r+")
    count: int = file.readinto_at(bytearray(10), 0) + file.read_ranges([0], [1], bytearray(1), depth=8)
    data: bytes = raw.read_at(1, 0)
    path: uringfs.Path = volume.path("/a").parent / "b"
    for entry in volume.scandir(path):
        volume.rename(entry, path / entry)

async def wait(file: AsyncFile) -> bytes:
    return await file.read_at(10, 0)
"""
WRONG = [
    "volume.open_file(7)",
    "volume.open_file('/a').readinto_at(b'x', '0')",
    "volume.open('/a').read() + b''",
    "volume.statistics().missing",
    "uringfs.Path('/a')",
]


def check(module: list[str], folder) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), *module]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_the_package_has_types_that_agree_with_its_code_and_with_the_extension_module(tmp_path):
    assert (pathlib.Path(uringfs.__file__).parent / "py.typed").exists()
    checked = check(["-p", "uringfs"], tmp_path)
    assert checked.returncode == 0, checked.stdout
    command = [sys.executable, "-m", "mypy.stubtest", "uringfs._uringfs"]
    compared = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert compared.returncode == 0, compared.stdout
    (tmp_path / "right.py").write_text(RIGHT)
    checked = check(["right.py"], tmp_path)
    assert checked.returncode == 0, checked.stdout
    lines = "".join(f"    {line}\n" for line in WRONG)
    (tmp_path / "wrong.py").write_text(f"import uringfs\n\ndef use(volume: uringfs.Volume) -> None:\n{lines}")
    found = {line.split(":")[1] for line in check(["wrong.py"], tmp_path).stdout.splitlines() if ": error:" in line}
    assert found == {str(4 + number) for number in range(len(WRONG))}


@pytest.mark.parametrize("name", ["uringfs", "uringfs._volume", "uringfs._path", "uringfs.aio", "uringfs.fsspec"])
def test_the_examples_in_the_documentation_run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = doctest.testmod(importlib.import_module(name))
    assert (found.failed, found.attempted > 2) == (0, True)


def test_everything_public_has_a_documentation():
    for public in (uringfs.Volume, uringfs.File, uringfs.Path, uringfs.RawFile, uringfs.DirEntry):
        own = [name for kind in public.__mro__ if "uringfs" in kind.__module__ for name in vars(kind)]
        for name in own:
            member = getattr(public, name)
            inherited = hasattr(uringfs.RawFile.__base__, name)
            if not name.startswith("_") and callable(member) and not inherited:
                assert member.__doc__, f"{public.__name__}.{name}"
