#!/usr/bin/env python3
"""Shares of latency classes, depths and batches as CSV, for a spreadsheet.

    histogram.py REPORT.json

Latency classes are given by their upper ends in nanoseconds. Uses only fio's keys.
"""
import csv
import json
import sys

UNITS = {"latency_ns": 1, "latency_us": 10**3, "latency_ms": 10**6}
DEPTHS = ("iodepth_level", "iodepth_submit", "iodepth_complete")


def main(path):
    with open(path) as file:
        report = json.load(file)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["job", "kind", "up to", "percent"])
    for job in report["jobs"]:
        for key, unit in UNITS.items():
            for end, share in job[key].items():
                end = "inf" if end.startswith(">") else int(end) * unit
                out.writerow([job["jobname"], "latency", end, f"{share:.6f}"])
        for key in DEPTHS:
            for end, share in job[key].items():
                out.writerow([job["jobname"], key, end, f"{share:.6f}"])


main(sys.argv[1])
