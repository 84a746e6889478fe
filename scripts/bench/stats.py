"""Ratios within pairs, their median and 95 % interval, and whether a bound holds."""

import math
import statistics


def ratio(rates, over, under):
    return interval([a / b for a, b in zip(rates[over], rates[under])])


def interval(values):
    """The median, and the narrowest pair of order statistics that contains the true median with 95 % confidence."""
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
    return statistics.median(values), values[rank], values[count - 1 - rank]


def holds(interval, figure):
    """Whether a figure's bound, `at_least` or `at_most`, holds."""
    median, low, high = interval
    if "at_least" in figure:
        return high >= figure["at_least"] and median >= 0.98 * figure["at_least"]
    return low <= figure["at_most"] and median <= 1.02 * figure["at_most"]
