"""Time of the PDF and size of the page for a sweep of fifty cells: PYTHONPATH=. python benchmarks/sweep_report.py."""

import tempfile
import time
from pathlib import Path

from heldin.reports.html import write_page
from heldin.reports.sweep_report import report_sweep
from heldin.reports.typesetting import write_pdf
from tests.made_sweeps import made_sweep


def main() -> None:
    result = made_sweep(names=("none", *(f"variant-{i}" for i in range(9))), shipped="variant-8")
    with tempfile.TemporaryDirectory() as scratch:
        for what, write in (("report.pdf", write_pdf), ("report.html", write_page)):
            started = time.perf_counter()
            path = write(report_sweep(result), Path(scratch) / what)
            print(f"{what}: {time.perf_counter() - started:.1f} s, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
