"""Recorded figures: a JSON file for each table of docs/benchmarks.md. `charts` draws from them."""

import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import time

# Changes with the meaning of the files. `charts` refuses other numbers.
SCHEMA = 1


class Recording:
    """The figures of one run of a script. `command` repeats it."""

    def __init__(self, program, command):
        self.head = {
            "schema": SCHEMA,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": machine(),
            "program": subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip(),
            "command": shlex.join(str(word) for word in command),
        }
        self.figures = []

    def add(self, what, case, measured, **more):
        """A figure, with the bound and place in `more`."""
        median, low, high, samples = measured
        samples = {side: [float(f"{value:.6g}") for value in values] for side, values in samples.items()}
        self.figures.append({"what": what, "case": case, **more, "median": median, "low": low, "high": high, "samples": samples})

    def add_problem(self, what, case, problem, **more):
        """A figure that could not be measured."""
        self.figures.append({"what": what, "case": case, **more, "problem": problem})

    def write(self, folder, table, targets=""):
        path = pathlib.Path(folder) / f"{table}.json"
        if all("problem" in figure for figure in self.figures):
            print(f"nothing was measured: {path} is as it was")
            return
        text = json.dumps({**self.head, "targets": targets, "figures": self.figures}, indent=1)
        # Lists of numbers on one line each.
        text = re.sub(r"\[\s*([-\d.e,\s]+?)\s*\]", lambda found: f"[{' '.join(found[1].split())}]", text)
        path.write_text(text + "\n")
        print(f"recorded {len(self.figures)} figures in {path}")


def machine():
    """The properties of this machine that a figure depends on."""
    info = pathlib.Path("/proc/cpuinfo").read_text()

    def field(name):
        found = re.search(rf"^{name}\s*:\s*(.*)$", info, re.M)
        return found.group(1) if found else None

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": field("model name") or platform.machine(),
        "family": field("cpu family"),
        "model": field("model"),
        "virtual": re.search(r"^flags\s*:.*\bhypervisor\b", info, re.M) is not None,
        "processors": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "architecture": platform.machine(),
        "kernel": f"Linux {platform.release()}",
        "busy_percent": busy_percent(),
    }


def busy_percent():
    """How busy the processors are with something else, in a second before the run."""
    samples = []
    for pause in (1, 0):
        # user, nice, system, idle, iowait, ...
        ticks = [int(word) for word in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        samples.append((sum(ticks), ticks[3] + ticks[4]))
        time.sleep(pause)
    whole, idle = (after - before for before, after in zip(*samples))
    return round(100 * (1 - idle / whole))
