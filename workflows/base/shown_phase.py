"""Shows the phase of a run in its search attributes, where the server has them, and in Temporal's UI."""

from collections.abc import Callable

from temporalio import workflow

from ...conversation.contracts.control_messages import Pause
from ...conversation.contracts.plan import Plan
from ...conversation.contracts.status import Status
from ...conversation.metrics import RUNS_ENDED
from ...conversation.temporal import search_attributes
from ..state.constants import PAUSE_IN_ATTRIBUTES
from ..state.metrics import record
from ..state.run_state import RunState


class ShownPhase:
    """The phase of a run as others see it. ``searchable``: the server has Baton's search attributes, ``shows_cost``:
    also that of the cost, which is set at the end.

    ``tell_parent`` is called whenever the run waits for a person, or no longer.
    """

    def __init__(self, run: RunState, tell_parent: Callable[[], None]) -> None:
        self._run, self._tell_parent, self._shown = run, tell_parent, "Running"
        self.searchable = self.shows_cost = False
        run.decisions.on_change = self.show_decisions

    @property
    def _phase(self) -> str:
        return "Paused" if self._run.inbox.pause else "InputRequired" if self._run.decisions.are_awaited else "Running"

    def restore(self) -> None:
        """The phase that the run before this one has shown: Temporal itself hands on the search attributes."""
        self._shown = self._phase
        self._run.details.show_pause(self._run.inbox.pause)
        self.show_decisions()

    def begin(self, plan: Plan) -> None:
        """The run begins, perhaps paused. ``_shown`` stays as it is: it decides commands of runs that began before."""
        self._run.details.show_pause(self._run.inbox.pause)
        self._set({**search_attributes.attributes_of(plan), search_attributes.PHASE: self._phase})

    def show_pause(self, pause: Pause | None) -> None:
        """The run was paused, or resumed."""
        self._run.details.show_pause(pause)
        if self.searchable and workflow.patched(PAUSE_IN_ATTRIBUTES):
            self._shown = self._phase
            self._set({search_attributes.PHASE: self._phase})

    def show_decisions(self) -> None:
        """The run waits for a person, or no longer."""
        decisions = self._run.decisions
        self._run.details.show_decisions(decisions.pending, decisions.waiting_below)
        if self._phase != self._shown:
            self._shown = self._phase
            self._set({search_attributes.PHASE: self._phase})
        self._tell_parent()

    def end(self, status: Status) -> None:
        """The run ends."""
        record(RUNS_ENDED, phase=status.phase, reason=status.stop_reason or "")
        self._set({search_attributes.PHASE: status.phase, search_attributes.STOP_REASON: status.stop_reason})
        if self.shows_cost and status.token_usage.cost is not None:
            workflow.upsert_search_attributes([search_attributes.COST.value_set(status.token_usage.cost)])

    def _set(self, values: search_attributes.AttributeValues) -> None:
        if self.searchable:
            workflow.upsert_search_attributes(search_attributes.updates(values))
