"""Numbers and patch ids that determine a workflow's commands, which are recorded in histories.

A run that is replayed with another value issues other commands, which is a nondeterminism error. Change a value only
behind ``workflow.patched``, and keep the old one for runs that began with it.
"""

from datetime import timedelta

MAX_HISTORY_BYTES = 2_000_000
"""Size of a history, without the run's input, above which the run continues as new."""

MAX_HISTORY_EVENTS = 1_500
"""Events above which it does: a worker without the run in its cache can replay so many within the task timeout."""

LONG_TASK_TIMEOUT = timedelta(seconds=10)
"""Task timeout from which a worker can replay more events in time."""

MAX_HISTORY_EVENTS_LONG = 5_000
"""Events above which a run with such a task timeout continues as new; Temporal accepts 10,000 signals per run."""

MAX_CONCURRENT_ACTIVITIES = 500
"""Concurrent activities of one run. Temporal accepts 2,000, and 4 MB of commands per workflow task."""

MAX_CONCURRENT_CHILDREN = 100
"""Members or targets that run concurrently: their results must fit into the history of the run that started them."""

MAX_CONCURRENT_CALLS = 100
"""Tool calls of one answer that are executed concurrently; a run may continue as new before the next ones."""

MAX_CONCURRENT_SIGNALS = 20
"""Signals that are being sent to children: messages of 64 kB to so many fit into the commands of one workflow task."""

MAX_FORWARDING_HISTORY = 20_000_000
"""Bytes of history above which no message of a person is copied to the running children: a run with open children can't
continue as new, and Temporal terminates it at 50 MB."""

APPEND_BYTES = 6_000
"""Bytes of small messages in one ``append``: MAX_CONCURRENT_ACTIVITIES of them fit into one workflow task."""

MAX_OUTPUT_RETRIES = 2
"""How often an agent's model is called again when its answer does not fit the output schema."""

MAX_DECIDED = 100
"""Past decisions that a run remembers, to report who has already decided."""

MAX_QUESTIONS = 20
"""Questions that a server may ask a person in one call."""

STALL_SIMILARITY = 0.9
"""The similarity, as common words divided by all words of both texts, from which two texts count as the same."""

STALL_WORDS = 300
"""Words of a text that are compared; in languages without spaces, pairs of characters."""

TAKE_SPANS = "take_spans"
"""The name of the worker's function that takes the spans of runs."""

REPORT_INTERVAL = timedelta(seconds=10)
"""The interval at which a traced run reports its ended spans."""

MAX_ENDED_SPANS = 50
"""Ended spans after which a traced run reports before the interval is over."""

FALLBACK_FAMILIES = ("ModelError", "AuthenticationError", "TimeoutError")
"""The families of errors after which a fallback model is called."""

WAIT_FOR_WORKERS = "wait-for-workers"
"""Patch: a call that no worker has finished in time is an outage, which begins with the first failure of the call."""

WAIT_FOR_WORKERS_OF_FUNCTIONS = "wait-for-workers-of-functions"
"""Patch: the same for a function that is a member."""

WAIT_FOR_WORKERS_AFTER_FAILURES = "wait-for-workers-after-failures"
"""Patch: the same for a call whose latest attempt before that had failed."""

CANCEL_FUNCTIONS = "cancel-functions"
"""Patch: a member that is canceled while it reads the messages of people does not call its function."""

CANCEL_STARTS = "cancel-starts"
"""Patch: a call that is canceled while its child workflow starts notices that."""

SHOW_WAITS_FOR_STARTS = "show-waits-for-starts"
"""Patch: a run says that it waits until it can start a child."""

REPEATED_INPUT = "repeated-input"
"""Patch: an input that Temporal repeats, by a cron schedule or a retry of the workflow, is a client's."""

SETTLE_AGAIN = "settle-again"
"""Patch: a run also waits for what has come while it waited for its handlers, its parent and the audit log."""

END_BY_BUDGET = "end-by-budget"
"""Patch: a budget with ``onExceeded: fail`` that has ended a member of a parallel team ends the team as well, also with
``onMemberError: continue``."""

COMPARE_SPOKEN = "compare-spoken"
"""Patch: a team makes no progress if its members repeat what they say; the results of their tools are not compared."""

PAUSE_BEFORE_MEMBERS = "pause-before-members"
"""Patch: a paused run lets no further member of a parallel team begin."""

LEAVE_UNREAD = "leave-unread"
"""Patch: what no member of a child run has read when it ends is left to the parent, where others may read it."""

LEAVE_UNREAD_IN_TEAMS = "leave-unread-in-teams"
"""Patch: so is what the members who take their turns in the run of a team have not read."""

CONCLUDE_CANCELED = "conclude-canceled"
"""Patch: a panel that is canceled delivers what it has so far, as one that is terminated does."""

UNNOTICED_ABSENCE = timedelta(minutes=1)
"""The time until the first failure of a call from which that, and not the start of the call, begins an outage."""
