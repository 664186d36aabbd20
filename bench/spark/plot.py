"""Medians and ratios of a run of bench.spark, and a picture of each workload.

`python -m bench.spark.plot` draws the newest run in bench/results/spark.jsonl again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.kit.report import OTHER_CORES_MAX, Record, last_run
from bench.nsqd.plot import SERIES, STYLE, rect, text

RESULTS = Path(__file__).parents[1] / "results" / "spark.jsonl"
TITLES = {
    "batch_read": "Batch read to a noop sink",
    "stream_parquet": "Stream into a Parquet table",
    "todays_way": "From NSQ to a Parquet table",
    "latency": "From a publish to the row being in the table",
    "write": "Publishing rows",
}
NAMES = {
    "nsq": 'format("nsq")',
    "parquet": "Parquet",
    "nsq_to_file": "nsq_to_file, then text",
    "client": "a client with MPUB",
}
WIDTH, LEFT, RIGHT, TOP, BAR = 640, 170, 130, 56, 24


@dataclass(frozen=True)
class Row:
    """One workload: our figure, and the one it is compared with."""

    workload: str
    unit: str
    value: float
    basis: str
    basis_value: float | None
    other_cores: float
    records: Sequence[Record]

    @property
    def ratio(self) -> float | None:
        return self.value / self.basis_value if self.basis_value else None


def summarise(records: Iterable[Record]) -> list[Row]:
    records = list(records)
    rows = []
    for workload in dict.fromkeys(record["workload"] for record in records):
        mine = [record for record in records if record["workload"] == workload]
        ours = [record for record in mine if not record["basis"]]
        others = [record for record in mine if record["basis"]]
        rows.append(
            Row(
                workload=workload,
                unit=ours[0]["unit"],
                value=median(record["value"] for record in ours),
                basis=others[0]["server"] if others else "",
                basis_value=median(record["value"] for record in others) if others else None,
                other_cores=max(record["other_cores"] for record in mine),
                records=mine,
            )
        )
    return rows


def draw(records: Sequence[Record], results: Path) -> list[Path]:
    """A picture for each workload, beside the results."""
    pictures = []
    for row in summarise(records):
        path = results.with_name(f"{results.stem}-{row.workload}.svg")
        path.write_text(chart(row))
        pictures.append(path)
    return pictures


def chart(row: Row) -> str:
    bars = [(NAMES["nsq"], row.value, SERIES[0])]
    if row.basis_value:
        bars.append((NAMES[row.basis], row.basis_value, SERIES[1]))
    elif "p90_s" in row.records[0]:
        bars = [
            ("p50", row.value, SERIES[0]),
            ("p90", row.records[0]["p90_s"], SERIES[2]),
        ]
    longest = max(value for _, value, _ in bars)
    height = TOP + len(bars) * (BAR + 8) + 44
    title = TITLES[row.workload] + (f": {row.ratio:.2f}x" if row.ratio else "")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        text(12, 24, title),
        text(12, 42, "more is better" if row.unit == "rows/s" else "less is better", small=True),
    ]
    for number, (name, value, colour) in enumerate(bars):
        top = TOP + number * (BAR + 8)
        width = max(value / longest * (WIDTH - LEFT - RIGHT), 1)
        figure = f"{value:,.0f} rows/s" if row.unit == "rows/s" else f"{value:.3f} s"
        parts += [
            text(LEFT - 10, top + 17, name, anchor="end"),
            rect(LEFT, top, width, BAR, colour),
            text(LEFT + width + 8, top + 17, figure),
        ]
    parts.append(text(12, height - 14, origin(row), small=True))
    return "\n".join([*parts, "</svg>"]) + "\n"


def origin(row: Row) -> str:
    first = row.records[0]
    facts = first["machine"]
    disturbed = (
        f"; other work took up to {row.other_cores:.1f} cores"
        if row.other_cores > OTHER_CORES_MAX
        else ""
    )
    rows = f"{first['rows']:,} rows of 200 B, " if "rows" in first else ""
    return f"{first['run'][:10]}, {rows}{facts['cores']} cores {facts['cpu']}{disturbed}"


if __name__ == "__main__":
    for drawn in draw(last_run(RESULTS), RESULTS):
        print(drawn)
