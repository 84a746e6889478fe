#!/usr/bin/env python3
"""One line per job and direction: rate, bandwidth, mean and 99th percentile of latency.

    table.py REPORT.json

Uses only fio's keys.
"""
import json
import sys


def main(path):
    with open(path) as file:
        report = json.load(file)
    row = "{:<12} {:>5} {:<6} {:>10} {:>10} {:>10} {:>10} {:>6}".format
    print(row("job", "group", "way", "iops", "MiB/s", "mean us", "p99 us", "error"))
    for job in report["jobs"]:
        for way in ("read", "write", "trim"):
            side = job[way]
            if side["total_ios"] == 0:
                continue
            # Absent with clat_percentiles=0 or gtod_reduce=1.
            p99 = side["clat_ns"].get("percentile", {}).get("99.000000")
            print(row(
                job["jobname"],
                job["groupid"],
                way,
                f"{side['iops']:.0f}",
                f"{side['bw_bytes'] / 2**20:.1f}",
                f"{side['lat_ns']['mean'] / 1000:.1f}",
                "-" if p99 is None else f"{p99 / 1000:.1f}",
                job["error"],
            ))
    for disk in report.get("disk_util", []):
        print(f"disk {disk['name']}: reads {disk['read_ios']}, writes {disk['write_ios']},"
              f" busy {disk['util']:.1f} %")


main(sys.argv[1])
