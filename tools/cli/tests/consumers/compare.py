#!/usr/bin/env python3
"""Compares a run with an earlier one, job by job, and reports those that became slower.

    compare.py BEFORE.json AFTER.json [TOLERATED_PERCENT]

Exit code 3 if a rate fell, or a median latency rose, by more than the tolerance. Uses only fio's
keys.
"""
import json
import sys


def figures(path):
    """The figures to compare, by job and direction. Jobs of one name are distinguished by order."""
    with open(path) as file:
        report = json.load(file)
    found = {}
    for job in report["jobs"]:
        if job["error"] != 0:
            raise SystemExit(f"{path}: job {job['jobname']} failed with error {job['error']}")
        for way in ("read", "write", "trim"):
            side = job[way]
            if side["runtime"] == 0:
                continue
            name = f"{job['jobname']} {way}"
            copies = sum(1 for other, _ in found if other == name)
            found[name, copies] = {
                "iops": (side["iops"], +1),
                "bw": (side["bw"], +1),
                "p50": (side["clat_ns"].get("percentile", {}).get("50.000000", 0), -1),
            }
    return found


def main(before, after, tolerated=10.0):
    before, after = figures(before), figures(after)
    if before.keys() != after.keys():
        raise SystemExit(f"other jobs: {sorted(before.keys() ^ after.keys())}")
    slower = False
    for key, sides in before.items():
        for name, (old, better) in sides.items():
            new = after[key][name][0]
            change = (new - old) * 100.0 / old if old else 0.0
            worse = change * better < -tolerated
            slower |= worse
            print(f"{key[0]} {name}: {old:.0f} -> {new:.0f} ({change:+.1f} %)"
                  f"{' SLOWER' if worse else ''}")
    return 3 if slower else 0


sys.exit(main(*sys.argv[1:3], *map(float, sys.argv[3:])))
