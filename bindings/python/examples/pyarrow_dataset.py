"""A dataset of pyarrow in a volume: files in directories by year, of which a query reads what it needs.

    python pyarrow_dataset.py [IMAGE]

Makes a volume in the file IMAGE, else in a temporary one.
"""

import sys
import tempfile

import pyarrow
import pyarrow.dataset

import uringfs
from uringfs.fsspec import UringFileSystem


def main(image: str) -> None:
    with uringfs.Volume.create(image, size=64 << 20) as volume:
        # Any function of pyarrow that takes a file system takes this one.
        fs = UringFileSystem(volume)
        years = [2024 + row % 3 for row in range(3000)]
        table = pyarrow.table({"year": years, "value": range(3000)})
        by_year = pyarrow.dataset.partitioning(pyarrow.schema([("year", pyarrow.int64())]), flavor="hive")
        pyarrow.dataset.write_dataset(table, "/values", filesystem=fs, format="parquet", partitioning=by_year)
        volume.sync()
        print(*fs.glob("/values/*"), sep="\n")

        dataset = pyarrow.dataset.dataset("/values", filesystem=fs, partitioning=by_year)
        found = dataset.to_table(columns=["value"], filter=pyarrow.dataset.field("year") == 2026)
        print(f"{found.num_rows} values of 2026")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory(prefix="uringfs-") as folder:
            main(f"{folder}/disk.img")
