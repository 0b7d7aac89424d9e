"""The cost of an execution: how long it takes on one backend, learnt from its samples.

The first execution of a model often takes very long: of the first few the median counts.

Time = base + row_s x rows + byte_s x bytes, by exponentially weighted regression on whichever of
the two explains more. An outlier is clipped to the usual spread. Several outliers in a row are a
change: then new samples count more. Old samples weigh little once new ones arrive.
"""

from __future__ import annotations

from math import inf
from typing import Final

from lb.balancing.tuning import TUNING
from lb.domain.load import Measured

WINDOW: Final = TUNING.window
MIN_SAMPLES: Final = TUNING.min_samples
_FIRST: Final = TUNING.first_samples
_FIRST_DEVIATION: Final = TUNING.first_deviation
_STALE_S: Final = TUNING.stale_s
_STALE_COUNT: Final = TUNING.stale_samples
_UNSURE: Final = tuple(
    TUNING.unsure_deviations * (1.0 / max(1, 2 * count - 1)) ** 0.5 for count in range(WINDOW + 1)
)
"""By how many mean deviations two estimates of the same may differ, by the samples that count: two
standard errors, where a standard deviation is 1.25 mean ones. Weighted so, they are as good as
nearly twice as many plain ones."""
_SURPRISES: Final = TUNING.surprises
MAX_EXTRAPOLATION: Final = TUNING.max_extrapolation
_FLOOR_S: Final = 1e-5
"""A sample counts as this many seconds at least."""
_CLIP_DEVIATIONS: Final = TUNING.clip_deviations
_CLIP_SHARE: Final = TUNING.clip_share
_CLIP_S: Final = TUNING.clip_s
_VARIES: Final = TUNING.min_variation


class Cost:
    """The learnt cost of an execution on one model backend."""

    __slots__ = (
        "_byte_cov", "_byte_mean", "_byte_var", "_first", "_least_ratio", "_line", "_line_count",
        "_outlasted", "_recent", "_recent_rows", "_recent_sizes", "_row_cov", "_row_mean",
        "_row_var", "_surprises", "_weight", "assumed", "at", "base_s", "byte_s", "count",
        "deviation_s", "mean_s", "row_s", "surprises", "unsure_s",
    )  # fmt: skip

    def __init__(self, instances: int = 1) -> None:
        """Begin with nothing. `instances` is how many executions run side by side."""
        self.surprises = _SURPRISES
        """Outliers in a row that are a change."""
        self.run_in_parallel(instances)
        self.count = 0
        """Samples, and those that stand for what the backend has measured itself."""
        self.assumed = 0
        """The latter alone."""
        self.at = 0.0
        """When the last sample ended, or an execution was given up that took longer than hoped."""
        self.mean_s = 0.0
        """Mean seconds of an execution."""
        self.deviation_s = 0.0
        """Mean deviation of samples from the estimate."""
        self.unsure_s = 0.0
        """By how much the estimate may be off: about two standard errors of the weighted mean."""
        self.base_s = 0.0
        self.row_s = 0.0
        self.byte_s = 0.0
        self._first: list[float] = []
        self._recent = [inf] * WINDOW
        """Seconds of the last samples, by number."""
        self._recent_rows = [1.0] * WINDOW
        self._recent_sizes = [0.0] * WINDOW
        self._least_ratio = 0.0
        """The result of `least_ratio`; 0 if something was learnt since."""
        self._line = (0.0, 0.0)
        """The last result of `line`."""
        self._line_count = -1
        """The `count` then."""
        self._outlasted = -1
        """The `count` when an execution was given up: nothing is sure until another ends."""
        self._weight = 0
        self._surprises = 0
        self._row_mean = 1.0
        self._row_var = 0.0
        self._row_cov = 0.0
        self._byte_mean = 0.0
        self._byte_var = 0.0
        self._byte_cov = 0.0

    def run_in_parallel(self, instances: int) -> None:
        """Take over how many executions run side by side."""
        self.surprises = _SURPRISES + instances - 1

    def predict(self, rows: float, size: float) -> float:
        """Predict the seconds of an execution of so many rows and bytes."""
        took_s = self.base_s + self.row_s * rows
        return self.with_bytes(took_s, size) if self.byte_s else took_s

    def with_bytes(self, took_s: float, size: float) -> float:
        """Add what bytes take to a prediction, up to `MAX_EXTRAPOLATION` times the mean."""
        most_s = MAX_EXTRAPOLATION * self.mean_s
        took_s += self.byte_s * size
        return took_s if took_s < most_s else most_s

    def line(self) -> tuple[float, float]:
        """Describe recent samples by a line: unlike `predict` it leaves out nothing that seems
        unusual, as the first parts of batches are that had been whole.

        Where all had about the same number of rows, nobody knows what a row costs. Then all of
        their time counts as that of rows: one batch that is divided shows what is true.

        Returns:
            Seconds of an execution without rows, and those that each row adds.
        """
        if self._line_count != self.count:
            self._line, self._line_count = self._fit_line(), self.count
        return self._line

    def _fit_line(self) -> tuple[float, float]:
        """Fit the line of `line`."""
        count = 0
        rows = took_s = squares = products = 0.0
        for its_rows, its_s in zip(self._recent_rows, self._recent, strict=True):
            if its_s < inf:
                count += 1
                rows += its_rows
                took_s += its_s
                squares += its_rows * its_rows
                products += its_rows * its_s
        if not count:
            return self.base_s, self.row_s
        rows /= count
        took_s /= count
        varies = squares - count * rows * rows
        if varies <= _VARIES * rows * rows * count:
            return 0.0, took_s / rows
        with_rows = products - count * rows * took_s
        row_s = min(max(with_rows / varies, 0.0), took_s / rows)
        return took_s - row_s * rows, row_s

    @property
    def weight(self) -> int:
        """The number of samples that count."""
        return self._weight

    def is_sure(self, now: float) -> bool:
        """Whether enough recent samples are known to refuse requests by the estimate."""
        return (
            self.count - self.assumed >= WINDOW
            and now - self.at <= _STALE_S
            and self.count != self._outlasted
        )

    def outlasted(self, now: float) -> None:
        """Note an execution that was given up before its end. The estimate holds on, and refuses
        nothing."""
        if now - self.at > _STALE_S:
            self._weight = min(self._weight, _STALE_COUNT)
        self.at = now
        self._outlasted = self.count

    def assume(self, measured: Measured, now: float) -> None:
        """Begin with what the backend has measured itself. A few samples outweigh it."""
        self.count = self.assumed = MIN_SAMPLES
        self._line_count = -1
        self._weight = 1
        self.at = now
        self.mean_s = mean = max(measured.mean_s, _FLOOR_S)
        self.row_s = measured.row_s
        self.base_s = max(_FLOOR_S, mean - measured.row_s * measured.rows)
        self.deviation_s = _FIRST_DEVIATION * _FIRST_DEVIATION * mean
        self.unsure_s = _FIRST_DEVIATION * mean
        self._row_mean = measured.rows
        self._row_var = measured.rows_variance
        self._row_cov = measured.row_s * measured.rows_variance

    def learn(self, took_s: float, rows: float, size: float, now: float) -> None:
        """Learn from an execution of so many rows and bytes that took so many seconds."""
        # HOT PATH (benchmarks/bench_schedule.py). No call but where something varies: `abs`, `min`
        # and `max` are written out.
        took_s = _FLOOR_S if took_s < _FLOOR_S else took_s
        self.count = count = self.count + 1
        self._least_ratio = 0.0
        place = count % WINDOW
        self._recent[place] = took_s
        self._recent_rows[place] = rows
        self._recent_sizes[place] = size
        if count <= _FIRST:
            if not self.assumed:
                self._begin(took_s, rows, size, now)
                return
            if count == self.assumed + 1:
                self._byte_mean = size  # no report has bytes
        if now - self.at > _STALE_S:
            self._weight = min(self._weight, _STALE_COUNT)
        self.at = now
        expected = self.base_s + self.row_s * rows + self.byte_s * size
        off = took_s - expected
        deviation_s = self.deviation_s
        usual = _CLIP_DEVIATIONS * deviation_s + _CLIP_SHARE * expected + _CLIP_S
        if -usual <= off <= usual:
            self._surprises = 0
        else:
            self._surprises += 1
            off = usual if off > 0 else -usual
            if self._surprises >= self.surprises:
                self._surprises = 0
                self._weight = 1
                off = took_s - expected
        weight = self._weight
        if weight < WINDOW:
            self._weight = weight = weight + 1
        part = 1.0 / weight
        deviation_s += part * ((off if off > 0.0 else -off) - deviation_s)
        self.deviation_s = deviation_s
        self.unsure_s = deviation_s * _UNSURE[weight]
        if self._row_var or self._byte_var or rows != self._row_mean or size != self._byte_mean:
            self._regress(expected + off, rows, size, part)
        else:
            self.mean_s += part * (expected + off - self.mean_s)
            self.base_s = self.mean_s

    def last_sample(self) -> tuple[float, float, float]:
        """The seconds, rows and bytes of the last sample; there must be one."""
        place = self.count % WINDOW
        return self._recent[place], self._recent_rows[place], self._recent_sizes[place]

    def least_ratio(self) -> float:
        """Find the quickest recent sample, as a part of what is predicted for it now."""
        least = self._least_ratio
        if least:
            return least
        recent = self._recent
        least = 1.0
        if self.row_s or self.byte_s:
            sizes = zip(recent, self._recent_rows, self._recent_sizes, strict=True)
            for took_s, rows, size in sizes:
                expected_s = self.base_s + self.row_s * rows + self.byte_s * size
                if took_s < least * expected_s:
                    least = took_s / expected_s
        elif self.base_s:
            least = min(least, min(recent) / self.base_s)
        self._least_ratio = least
        return least

    def _begin(self, took_s: float, rows: float, size: float, now: float) -> None:
        first = self._first
        first.append(took_s)
        first.sort()
        count = len(first)
        self._weight = count
        self.at = now
        self.mean_s = self.base_s = mean = first[(count - 1) // 2]
        spread = sum([abs(sample - mean) for sample in first]) / count
        self.deviation_s = max(_FIRST_DEVIATION * mean / count, spread)
        self.unsure_s = 2 * self.deviation_s
        self._row_mean += (rows - self._row_mean) / count
        self._byte_mean += (size - self._byte_mean) / count

    def _regress(self, took_s: float, rows: float, size: float, part: float) -> None:
        keep = 1.0 - part
        off = took_s - self.mean_s
        self.mean_s = mean = self.mean_s + part * off
        by_row = rows - self._row_mean
        by_byte = size - self._byte_mean
        self._row_mean += part * by_row
        self._row_var = keep * (self._row_var + part * by_row * by_row)
        self._row_cov = keep * (self._row_cov + part * by_row * off)
        self._byte_mean += part * by_byte
        self._byte_var = keep * (self._byte_var + part * by_byte * by_byte)
        self._byte_cov = keep * (self._byte_cov + part * by_byte * off)
        self._fit(mean)

    def _fit(self, mean: float) -> None:
        """Explain the time by rows, or by bytes where those explain more."""
        row_mean, row_var, row_cov = self._row_mean, self._row_var, self._row_cov
        byte_mean, byte_var, byte_cov = self._byte_mean, self._byte_var, self._byte_cov
        rows_vary = row_var > _VARIES * row_mean * row_mean
        bytes_vary = byte_var > _VARIES * byte_mean * byte_mean
        self.row_s = self.byte_s = 0.0
        by_row = row_cov * row_cov / row_var if rows_vary and row_cov > 0 else 0.0
        by_byte = byte_cov * byte_cov / byte_var if bytes_vary and byte_cov > 0 else 0.0
        if by_row > 0 and by_row >= by_byte:
            self.row_s = min(row_cov / row_var, mean / row_mean)
            self.base_s = max(_FLOOR_S, mean - self.row_s * row_mean)
        elif by_byte > 0:
            self.byte_s = min(byte_cov / byte_var, mean / byte_mean)
            self.base_s = max(_FLOOR_S, mean - self.byte_s * byte_mean)
        else:
            self.base_s = mean
