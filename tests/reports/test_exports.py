"""Figures and tables as files: what is drawn is in the CSV, and every format can be read by what it is made for."""

import csv
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from urllib.parse import unquote

import numpy as np
import pypdfium2
import pytest
from PIL import Image

from heldin.record.document import read_record
from heldin.reports.blocks import Report, ReportSection, Table
from heldin.reports.exports import write_figures, write_tables
from heldin.reports.html import render
from heldin.reports.record_report import report_record
from heldin.reports.sweep_report import report_sweep
from tests.made_sweeps import made_sweep


def _rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("typeset")
def test_the_command_writes_tables_and_every_figure_in_three_formats_with_what_it_draws(finished, call, tmp_path):
    code, out, err = call("report", finished, "--figures", tmp_path / "figures", "--tables", tmp_path / "t")
    assert (code, err) == (0, "")
    assert {path.suffix for path in (tmp_path / "t").iterdir()} == {".csv", ".md", ".tex"}
    written = list((tmp_path / "figures").iterdir())
    assert out.count("file: ") == len(written) + len(list((tmp_path / "t").iterdir()))
    plain = read_record(finished / "record.json")
    report = report_record(plain)
    figures = report.figures
    assert {path.name for path in written} == {f"{n}.{kind}" for n in figures for kind in ("pdf", "svg", "png", "csv")}
    for path in written:
        match path.suffix:
            case ".pdf":
                assert len(pypdfium2.PdfDocument(path)) == 1
            case ".png":
                with Image.open(path) as image:
                    assert image.width > 1000
            case ".svg":
                ET.parse(path)
    # The web page links each figure's data.
    links = dict(
        re.findall(
            r'download="([\w-]+)\.csv" href="data:text/csv;charset=utf-8,([^"]+)"',
            render(report),
        )
    )
    assert {name: unquote(data) for name, data in links.items()} == {
        name: (tmp_path / "figures" / f"{name}.csv").read_text(encoding="utf-8") for name in figures
    }
    # The same numbers as in the record.
    drawn = _rows(tmp_path / "figures" / "roc.csv")
    curve = plain.curve()
    points = [(float(row["x"]), float(row["y"])) for row in drawn if row["series"].startswith(plain.primary_attack)]
    drawn_first = np.array(points[: len(curve.fpr)])
    np.testing.assert_allclose(drawn_first, np.column_stack([curve.fpr, curve.tpr]), atol=1e-5)
    scores = _rows(tmp_path / "figures" / "scores.csv")
    assert [float(row["x"]) for row in scores if row["series"] == "members"][:2] == pytest.approx(
        curve.histogram.edges[:2], rel=1e-4
    )


@pytest.mark.usefixtures("typeset")
def test_points_and_intervals_of_each_defense_are_in_the_data_by_name(tmp_path):
    result = made_sweep()
    report = report_sweep(result)
    write_figures(replace(report, sections=[its for its in report.sections if its.key == "picture"]), tmp_path)
    rows = _rows(tmp_path / "defenses.csv")
    for its in result.variants:
        ends = [float(row["x"]) for row in rows if row["series"] == f"{its.label}, interval"]
        assert min(ends) == pytest.approx(its.gain.lower, abs=1e-4)
        assert [float(row["y"]) for row in rows if row["series"] == its.label] == pytest.approx([its.auroc.value])


def test_every_table_is_written_as_csv_markdown_and_latex(tmp_path):
    head, rows = ("name", "100 %"), [["a|b", "1_000 & more"], ["x-y", "2"]]
    report = Report("t", "0.1.0", "n", (ReportSection("sizes", "Sizes", (Table(head, rows),) * 2),))
    written = write_tables(report, tmp_path)
    assert {path.name for path in written} == {f"{n}.{k}" for n in ("sizes", "sizes-2") for k in ("csv", "md", "tex")}
    assert _rows(tmp_path / "sizes.csv")[1] == {"name": "x-y", "100 %": "2"}
    assert "| a\\|b | 1_000 & more |" in (tmp_path / "sizes.md").read_text(encoding="utf-8")
    latex = (tmp_path / "sizes.tex").read_text(encoding="utf-8")
    assert "\\toprule" in latex
    assert "1\\_000 \\& more" in latex
    assert "100 \\%" in latex
