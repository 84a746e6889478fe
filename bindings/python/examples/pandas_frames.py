"""Tables of pandas in a volume: CSV and Parquet files under `uringfs://` URLs.

    python pandas_frames.py [IMAGE]

Makes a volume in the file IMAGE, else in a temporary one.
"""

import sys
import tempfile

import pandas

import uringfs


def main(image: str) -> None:
    uringfs.Volume.create(image, size=64 << 20).close()
    # The path of the volume, a colon, and the path in it.
    root = f"uringfs://{image}:"
    days = pandas.date_range("2026-01-01", periods=365)
    frame = pandas.DataFrame({"day": days, "number": range(365)})
    frame.to_csv(f"{root}/days.csv", index=False)
    frame.to_parquet(f"{root}/days.parquet")

    text = pandas.read_csv(f"{root}/days.csv", parse_dates=["day"])
    columns = pandas.read_parquet(f"{root}/days.parquet", columns=["number"])
    assert text["number"].equals(columns["number"])
    print(f"{len(text)} days, the last one is {text['day'].iloc[-1]:%Y-%m-%d}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory(prefix="uringfs-") as folder:
            main(f"{folder}/disk.img")
