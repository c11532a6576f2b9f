"""Means with their 95 % confidence intervals, over cases and repeats."""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

CONFIDENCE = 0.95

_Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


class Interval(NamedTuple):
    """A mean and its interval; ``low`` and ``high`` are the mean itself if there is nothing to estimate them from.

    ``values`` is the number of values.
    """

    mean: float
    low: float
    high: float
    values: int

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values, with Student's interval. Raises ValueError without a value."""
    mean = fmean(values)
    count = len(values)
    if count < 2:
        return Interval(mean, mean, mean, count)
    half = _student(count - 1) * stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def share_interval(successes: float, count: int) -> Interval:
    """The share of successes in ``count`` independent attempts, with Wilson's interval."""
    share = successes / count
    square = _Z**2
    center = (share + square / (2 * count)) / (1 + square / count)
    half = _Z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return Interval(share, max(0.0, center - half), min(1.0, center + half), count)


def grouped_interval(groups: Sequence[Sequence[float]], *, shares: bool) -> Interval:
    """The mean over groups, each of which has the values of one case's repeats.

    Repeats of one case are not independent, so the interval is that of the groups' means; of a single group it is that
    of its values. ``shares``: the values are 1 for a success and 0 otherwise. Raises ValueError without a value.
    """
    values = [value for group in groups for value in group]
    if shares and (len(groups) == 1 or all(len(group) == 1 for group in groups)):
        return share_interval(sum(values), len(values))
    means = values if len(groups) == 1 else [fmean(group) for group in groups]
    if shares and len(set(means)) == 1:
        # Equal means have no variance, but a few cases that have all passed don't prove that every case would.
        return share_interval(sum(means), len(means))._replace(values=len(values))
    interval = mean_interval(means)
    if shares:
        interval = interval._replace(low=max(0.0, interval.low), high=min(1.0, interval.high))
    return interval._replace(values=len(values))


def amount_interval(groups: Sequence[Sequence[float]]) -> Interval:
    """As ``grouped_interval``, for what is never negative: seconds, tokens, cost."""
    interval = grouped_interval(groups, shares=False)
    return interval._replace(low=max(0.0, interval.low))


def _student(freedom: int) -> float:
    """The quantile of Student's distribution: exact for 1 and 2 degrees of freedom, otherwise to three digits."""
    p = 0.5 + CONFIDENCE / 2
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom == 2:
        a = 2 * p - 1
        return a * math.sqrt(2 / (1 - a**2))
    # The expansion of Cornish and Fisher.
    z = _Z
    n = float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
