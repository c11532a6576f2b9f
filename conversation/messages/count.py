"""A count that a server may have sent: a wrong one is taken as the nearest that can be."""

from typing import Annotated

from pydantic import AfterValidator

MAX_COUNT = 10**12
"""The largest count that is believed: counts are stored in columns of 64 bits, and summed up there."""

Count = Annotated[int, AfterValidator(lambda count: min(max(count, 0), MAX_COUNT))]
