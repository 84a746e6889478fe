"""Volumes in files of their own, which the tests share."""

from __future__ import annotations

import pytest

import uringfs

#: The size of a volume.
SIZE = 32 << 20


@pytest.fixture
def image(tmp_path):
    """The path of a new volume, which is closed."""
    path = tmp_path / "uringfs.img"
    uringfs.Volume.create(path, SIZE).close()
    return path


@pytest.fixture
def volume(image):
    """A new volume, open."""
    with uringfs.Volume(image) as volume:
        yield volume
