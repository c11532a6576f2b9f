"""The activities: all code with side effects or secrets. ``registry`` lists them by the role of the worker."""

from ..installation import require

require("worker", "a worker")
