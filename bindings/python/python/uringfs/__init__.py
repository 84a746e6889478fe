"""Named files on a block device or inside one ordinary file, read and written over io_uring, from user space.

A volume has the calls of `os`, and its files those of `open`:

>>> import tempfile, uringfs
>>> folder = tempfile.TemporaryDirectory()
>>> with uringfs.Volume.create(f"{folder.name}/disk.img", size=64 << 20) as volume:
...     volume.makedirs("/logs/2026")
...     with volume.open("/logs/2026/first", "w") as file:
...         _ = file.write("hello")
...     volume.listdir("/logs/2026"), volume.stat("/logs/2026/first").st_size
(['first'], 5)

`volume.open_file` opens a `File`, which is read and written by offset; `volume / "logs"` is a `Path`, as of pathlib;
`uringfs.aio` has files for asyncio; and with fsspec, `uringfs://` is a file system for pandas, pyarrow and others.

One process has a volume open for writing; readers share it while there is no writer. After a fork, a volume stays the
parent's: start workers with the method "spawn".
"""

import os

from uringfs._entries import DirEntry, Statistics
from uringfs._files import RawFile
from uringfs._path import Path
from uringfs._uringfs import File, mark_child
from uringfs._volume import Volume

__all__ = ["DirEntry", "File", "Path", "RawFile", "Statistics", "Volume"]

os.register_at_fork(after_in_child=mark_child)
