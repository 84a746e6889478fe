"""Figures of paired runs: ratios within pairs, their median and 95 % interval, and whether a bound holds."""

import math
import statistics
from typing import NamedTuple


class Measured(NamedTuple):
    """A figure, and the values that it was formed from: those of each side, one for each round."""

    median: float
    low: float
    high: float
    samples: dict


def ratio(rates, over, under):
    values = [a / b for a, b in zip(rates[over], rates[under])]
    return interval(values, {side: rates[side] for side in (over, under)})


def interval(values, samples):
    """The median, and the narrowest pair of order statistics that contains the true median with 95 % confidence. Of
    seven values, or fewer, these are the lowest and the highest: of five with 94 %, of fewer with less."""
    values = sorted(values)
    count = len(values)
    # The probability to miss: of `count` fair coins, at most `rank` fall on one side.
    rank, missed = 0, 0.0
    while True:
        missed += 2 * math.comb(count, rank) / 2**count
        if missed > 0.05:
            break
        rank += 1
    rank = max(rank - 1, 0)
    return Measured(statistics.median(values), values[rank], values[count - 1 - rank], samples)


def holds(measured, figure):
    """Whether a figure's bound, `at_least` or `at_most`, holds."""
    if "at_least" in figure:
        return measured.high >= figure["at_least"] and measured.median >= 0.98 * figure["at_least"]
    return measured.low <= figure["at_most"] and measured.median <= 1.02 * figure["at_most"]
