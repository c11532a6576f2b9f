"""Chooses the ports of the embedded server and its UI: those that were asked for, or free ones."""

from collections.abc import Sequence

from ..errors import UsageError
from .embedded import free_ports


def choose_ports(port: int | None, ui_port: int | None, preferred: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The ports that were asked for; for one that was not, that of the first preferred pair that is free, or any.

    Raises UsageError for a port that was asked for and is taken.
    """
    for number, option in ((port, "--port"), (ui_port, "--ui-port")):
        if number and not _is_free(number):
            raise UsageError(
                f"the port {number} is taken, perhaps by another Temporal server: choose another one with {option}"
            )
    return free_ports(*((port or first, ui_port or second) for first, second in (*preferred, (0, 0))))


def taken_of(ports: tuple[int, int]) -> list[int]:
    """Those of the ports that another process has."""
    return [port for port in ports if port and not _is_free(port)]


def _is_free(port: int) -> bool:
    return port in free_ports((port, 0))
