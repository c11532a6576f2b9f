"""The dialects in which a run counts turns and tells its status to clients: Baton's own, and ARK's."""

from typing import Literal

Dialect = Literal["baton", "ark"]
"""``ark`` is ARK as it is today (ARK: today's dialect)."""
