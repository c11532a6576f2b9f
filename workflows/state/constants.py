"""Numbers and patch ids that decide which commands a workflow gives: recorded in histories, so not free to change.

A run that is replayed with another value gives other commands, and Temporal refuses its history. Whoever changes one of
these does so behind ``workflow.patched``, and keeps the old value for the runs that began with it.
"""

from datetime import timedelta

MAX_HISTORY_BYTES = 2_000_000
"""Size of a history, without the run's input, above which the run continues as new."""

MAX_HISTORY_EVENTS = 1_500
"""Events above which it does: a worker that has never seen the run can replay so many within its task timeout."""

LONG_TASK_TIMEOUT = timedelta(seconds=10)
"""Task timeout from which on a worker can replay more events in time."""

MAX_HISTORY_EVENTS_LONG = 5_000
"""Events above which a run with such a task timeout continues as new; Temporal takes 10,000 signals in one run."""

MAX_CONCURRENT_ACTIVITIES = 500
"""Activities of one run that are under way at once. Temporal takes 2,000, and 4 MB of commands from one task."""

MAX_CONCURRENT_CHILDREN = 100
"""Members or targets that run at once: what they say must fit into the history of the run that started them."""

APPEND_BYTES = 6_000
"""Bytes of small messages that one ``append`` takes: MAX_CONCURRENT_ACTIVITIES of them fit into one task."""

MAX_OUTPUT_RETRIES = 2
"""How often an agent's model is called again when its answer does not fit the output schema."""

MAX_DECIDED = 100
"""Past decisions that a run remembers, to tell who has decided already."""

MAX_QUESTIONS = 20
"""Questions that a server may ask people in one call."""

STALL_SIMILARITY = 0.9
"""Share of common words from which on two texts count as the same, of all words in either of them."""

STALL_WORDS = 300
"""Words of a text that are compared; in a language without spaces, pairs of characters."""

TAKE_SPANS = "take_spans"
"""The name of the worker's function that takes the spans of runs."""

REPORT_INTERVAL = timedelta(seconds=10)
"""After this long a traced run reports the spans that have ended."""

MAX_ENDED_SPANS = 50
"""Ended spans that a traced run reports before that."""

FALLBACK_FAMILIES = ("ModelError", "AuthenticationError", "TimeoutError")
"""The families of errors after which a model's fallback is called."""
