"""Reads the metrics that are recorded in the process of the tests."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from functools import lru_cache

from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from temporalio.client import Client

from baton.observability.metrics import Metric
from baton.observability.runtime import watch_surroundings

Labels = frozenset[tuple[str, object]]


@lru_cache(maxsize=1)
def _reader() -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    set_meter_provider(MeterProvider([reader]))
    return reader


def _values() -> Iterator[tuple[str, Labels, float]]:
    data = _reader().get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.data.data_points:
                assert isinstance(point, HistogramDataPoint | NumberDataPoint)
                value = point.count if isinstance(point, HistogramDataPoint) else point.value
                yield metric.name, frozenset((point.attributes or {}).items()), value


class Recorded:
    """What is recorded from now on: the values of counters and gauges, and how many values histograms have got."""

    def __init__(self) -> None:
        self._before = {(name, labels): value for name, labels, value in _values()}

    def of(self, metric: Metric, **labels: str) -> dict[tuple[str, ...], float]:
        """The values of a metric with these labels that are not 0, by its other labels, in their order."""
        other_labels = [label for label in metric.labels if label not in labels]
        values: dict[tuple[str, ...], float] = {}
        for name, point_labels, value in _values():
            if name == metric.name and point_labels >= set(labels.items()):
                assert {label for label, _ in point_labels} == {*metric.labels}, point_labels
                by_label = dict(point_labels)
                change = value - (0 if metric.kind == "gauge" else self._before.get((name, point_labels), 0))
                if change:
                    values[tuple(str(by_label[label]) for label in other_labels)] = change
        return values


def watching_runs(client: Client, task_queue: str) -> AbstractAsyncContextManager[None]:
    """What records the runs of a task queue that wait, and nothing else."""

    async def nothing() -> dict[str, str]:
        return {}

    return watch_surroundings(client, task_queue, {}, nothing, lambda: None)
