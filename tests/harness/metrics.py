"""Reads the metrics that are recorded in the process of the tests."""

from collections.abc import Iterator
from functools import lru_cache

from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

from baton.observability.metrics import Metric

Labels = frozenset[tuple[str, object]]


@lru_cache(maxsize=1)
def _reader() -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    set_meter_provider(MeterProvider([reader]))
    return reader


def _values() -> Iterator[tuple[str, Labels, float]]:
    data = _reader().get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for metric in (each for scope in resource.scope_metrics for each in scope.metrics):
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
        others = [each for each in metric.labels if each not in labels]
        found: dict[tuple[str, ...], float] = {}
        for name, having, value in _values():
            if name == metric.name and having >= set(labels.items()):
                assert {label for label, _ in having} == {*metric.labels}, having
                known = dict(having)
                more = value - (0 if metric.kind == "gauge" else self._before.get((name, having), 0))
                if more:
                    found[tuple(str(known[each]) for each in others)] = more
        return found
