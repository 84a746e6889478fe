"""The examples run, and the code of the guide's page does."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).parents[1]
GUIDE = PACKAGE.parents[1] / "docs" / "guide" / "python.md"


def run(*command: object, folder: pathlib.Path) -> str:
    ended = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def test_pandas_reads_what_it_wrote(tmp_path):
    found = run(PACKAGE / "examples" / "pandas_frames.py", tmp_path / "disk.img", folder=tmp_path)
    assert found == "365 days, the last one is 2026-12-31\n"


def test_pyarrow_finds_its_directories(tmp_path):
    found = run(PACKAGE / "examples" / "pyarrow_dataset.py", tmp_path / "disk.img", folder=tmp_path)
    assert found == "/values/year=2024\n/values/year=2025\n/values/year=2026\n1000 values of 2026\n"


def test_workers_load_batches_and_a_reader_beside_a_writer_is_refused(tmp_path):
    lines = run(PACKAGE / "examples" / "loader.py", tmp_path / "disk.img", folder=tmp_path).splitlines()
    assert lines[0] == "16 batches of 256 samples by 2 workers"
    assert "another program has the volume open" in lines[1] and "`uringfs mount`" in lines[1]


def test_the_code_of_the_guide_runs(tmp_path):
    """As one program, as each block uses what those before have made."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    (tmp_path / "program.py").write_text("\n".join(blocks))
    run(tmp_path / "program.py", folder=tmp_path)
