"""Numbers and patch ids that decide which commands a workflow gives: recorded in histories, so not free to change.

A run that is replayed with another value gives other commands, and Temporal refuses its history. Whoever changes one of
these does so behind ``workflow.patched``, and keeps the old value for the runs that began with it.
"""

from datetime import timedelta

MAX_HISTORY_BYTES = 2_000_000
"""Size of a history, without the run's input, above which the run continues as new."""

MAX_HISTORY_EVENTS = 1_500
"""Events above which it does: a worker that has never seen the run can replay so many within its task timeout."""

LONG_TASK_TIMEOUT, MAX_HISTORY_EVENTS_LONG = timedelta(seconds=10), 5_000
"""Events above which a run with at least that task timeout does; Temporal takes at most 10,000 signals in one run."""

MAX_CONCURRENT_ACTIVITIES = 500
"""Activities of one run that are under way at once. Temporal takes 2,000, and 4 MB of commands from one task."""

MAX_CONCURRENT_CHILDREN = 100
"""Members or targets that run at once: what they say must fit into the history of the run that started them."""

APPEND_BYTES = 6_000
"""Bytes of small messages that one ``append`` takes: MAX_CONCURRENT_ACTIVITIES of them fit into one task."""

MAX_OUTPUT_RETRIES = 2
"""How often an agent is asked again when its answer does not fit its output schema."""

MAX_DECIDED = 100
"""Decisions of which a run remembers who has made them, for those who decide too late."""

MAX_QUESTIONS = 20
"""Questions that a server may ask people in one call."""

STALL_SIMILARITY = 0.9
"""Share of common words from which on two texts count as the same, of all words in either of them."""

STALL_WORDS = 300
"""Words of a text that are compared; in a language without spaces, pairs of characters."""

TAKE_SPANS = "take_spans"
"""The name of the worker's function that takes the spans of runs."""

REPORT_INTERVAL, MAX_ENDED_SPANS = timedelta(seconds=10), 50
"""How long ago, and how many spans, a run that is traced reports the spans that have ended before its own end."""

FALLBACK_FAMILIES = ("ModelError", "AuthenticationError", "TimeoutError")
"""The families of errors after which a model's fallback is asked."""

PIN_IN_TASK = "pin-at-once"
"""Patch: a run that has no parent is pinned by a local activity, within its first workflow task."""

STALL_PAIRS = "stall-pairs"
"""Patch: a text in a language without spaces is compared by its pairs of characters, rather than as one word."""

SILENT_TURNS = "silent-turns"
"""Patch: a turn that adds nothing to the conversation is no repetition of what another member said before it."""

INPUT_BEFORE_MESSAGES = "given-before-told"
"""Patch: what a continued run was given is taken up before any signal or update."""

SESSION_BOUND_AT_START = "session-bound-at-start"
"""Patch: a run whose session is too large from the start is refused."""

SESSION_AFTER_START = "session-after-start"
"""Patch: a child is sent the changes that the session has seen while the child was being started."""

PAUSED_AT_START = "paused-at-start"
"""Patch: a child of a run that is paused begins paused."""

ORDERED_MESSAGES = "ordered-messages"
"""Patch: messages to several children go to all at once, and to each child one after the other."""

MESSAGES_JOIN = "all-messages-join"
"""Patch: messages of people that nobody has read when a run ends join its conversation."""

TIMEOUT_CAUSE = "timeout-cause"
"""Patch: a query that reaches its timeout looks for what has failed last in the runs of its targets."""

MESSAGES_JOIN_QUERY = "messages-join-query"
"""Patch: those of a query that was stopped before any target was asked begin a conversation."""

PENDING_IN_PORTIONS = "pending-in-portions"
"""Patch: pending messages that are too many for one request are written before the model is asked."""

PAUSE_IN_ATTRIBUTES = "pause-in-attributes"
"""Patch: the search attribute of the phase says Paused while the run is paused."""

CIRCUIT_WAITS = "circuit-waits"
"""Patch: a call whose circuit breaker is open waits in the workflow."""

SELECTOR_READS_MESSAGES = "selector-reads-messages"
"""Patch: a selector waits while the run is paused, and reads what people said."""

CANCEL_AGENT = "cancel-agent"
"""Patch: what a canceled call of an agent elsewhere has left open at its server is canceled by an activity."""

KEPT_OUTCOMES = "kept-outcomes"
"""Patch: a turn that is stopped before it goes on in the next run still tells of the calls that are done."""
