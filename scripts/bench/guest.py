"""Figures of the counted guest, from the JSON of `uringfs bench vm`. Its rows are reads or overwrites, its columns engines on targets."""

# The columns of a row of the standard table, in its order: engine and kind of target. Older recordings lack the last.
SIDES = [
    "io_uring, raw device",
    "io_uring, ext4 file",
    "io_uring, XFS file",
    "uringfs, raw device",
    "uringfs, file in a volume",
    "uringfs, volume by batch",
]


def row(rows, rw, depth=128):
    """The row with least noise: polled, registered."""
    for found in rows:
        if found["rw"] == rw and found["depth"] == depth and found["polled"] and found["registered"]:
            return found
    raise KeyError(f"polled and registered row of {rw} at depth {depth}")


def column(found, engine, begin="/dev/", end="", batch=False):
    """The column of an engine, with a target that begins and ends so."""
    for one in found["columns"]:
        target = one["target"]
        if one["engine"] == engine and target.startswith(begin) and target.endswith(end) and one.get("batch", False) == batch:
            return one
    raise KeyError(f"column of {engine} on {begin}*{end}" + (" by batch" if batch else ""))


def cost(one):
    """Instructions per I/O: of everything that ran, or of the job's threads alone if they also waited."""
    elapsed, own = one["virtual_ns_per_io"], one["instructions_per_io"]
    return own if elapsed > 1.05 * own else elapsed


def above_ring(document, rw, depth, batch):
    """The cost of an I/O of a file in a volume, by token or by batch, and of one of the bare ring on the raw device."""
    found = row(document["rows"], rw, depth)
    return cost(column(found, "uringfs", end=":/file", batch=batch)), cost(column(found, "ring"))


def passthrough_runs(document, rw, base):
    """The same over NVMe passthrough, and by the engine `base`: a list of runs each, in which the sides took turns. `None` if the
    runs of a side differ too much for a figure."""
    found = row(document["passthrough"], rw)
    sides = column(found, "uringfs", "/dev/ng", ":/file"), column(found, base)
    return None if any(side["instructions_per_io"] is None for side in sides) else [side["runs"] for side in sides]
