"""What a run writes to the worker's log; nothing during replay."""

from temporalio import workflow

from ...observability.run_log import Fields, RunEvent, current_clients, log_event


def tell(event: RunEvent, fields: Fields) -> None:
    """Logs an event of this run, except during replay."""
    if not workflow.unsafe.is_replaying_history_events():
        info = workflow.info()
        log_event(event, {"run": info.workflow_id, "run_id": info.run_id, **fields})


def tell_update(fields: Fields) -> None:
    """Logs that the run has taken the update that is being handled."""
    update = workflow.current_update_info()
    assert update
    via = current_clients().updates.get(update.id)
    tell("control message", {"request": update.name, "via": via, **fields})
