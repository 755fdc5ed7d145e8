"""Each notebook runs, and shows what it shows on the site."""

import os

import pytest
from matplotlib import pyplot

from tests.docs.notebooks import NOTEBOOKS, code_cells, difference, numbered, outputs, read, write


def differences(stored, fresh):
    pairs = zip(stored, fresh, strict=True)
    return {"".join(cell["source"]): wrong for cell, its in pairs if (wrong := difference(cell["outputs"], its))}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_stores(path, tmp_path):
    notebook = read(path)
    cells = code_cells(notebook)
    fresh = outputs(cells, tmp_path)
    if "HELDIN_APPROVE" in os.environ:
        for cell, its in zip(cells, fresh, strict=True):
            cell["outputs"] = its
        write(path, numbered(notebook))
    assert differences(cells, fresh) == {}, "make notebooks stores the outputs"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_the_outputs_of_today_where_they_cost_nothing(path, tmp_path):
    cells = code_cells(read(path), tag="quick")
    assert differences(cells, outputs(cells, tmp_path)) == {}, "make notebooks stores the outputs"


def test_a_changed_output_is_found(tmp_path):
    def shown(*lines):
        (its,) = outputs([{"source": ["\n".join(("from matplotlib import pyplot", *lines))]}], tmp_path)
        return its

    line, area = "pyplot.plot([0, 1], [0, 1]);", "pyplot.fill([0, 1, 1, 0], [0, 0, 1, 1]);"
    drawn, printed = shown(line), shown("print('AUROC 0.80 of 100 users')")
    assert difference(drawn, shown("pyplot.plot([0, 1], [0, 0.99]);")) == ""
    assert "figures differ" in difference(drawn, shown(area))
    assert difference(printed, shown("print('AUROC 0.85 of 90 users')")) == ""
    assert "AUROC 1.2" in difference(printed, shown("print('AUROC 1.2 of 100 users')"))
    assert "members" in difference(printed, shown("print('AUROC 0.80 of 100 members')"))
    assert "is shown" in difference(printed, drawn)
    table = shown("import heldin", "heldin.power(users=100, auroc=0.8)")
    assert "<table>" in "".join(table[0]["data"]["text/html"])
    assert "100 users" in difference(table, shown("import heldin", "heldin.power(users=300, auroc=0.8)"))


def test_a_figure_of_earlier_code_is_in_no_cell(tmp_path):
    pyplot.figure()
    ((shown,),) = outputs([{"source": ["1 + 1"]}], tmp_path)
    assert shown["data"] == {"text/plain": ["2"]}


def test_lines_for_a_shell_and_silent_cells_are_run_as_jupyter_runs_them(tmp_path):
    (none, lines) = outputs([{"source": ["a = 7;"]}, {"source": ["!echo $((3 + 4))\n", "print(a)\n", "'x'"]}], tmp_path)
    assert none == []
    assert [output["output_type"] for output in lines] == ["stream", "execute_result"]
    assert lines[0]["text"] == ["7\n", "7\n"]
    assert lines[1]["data"]["text/plain"] == ["'x'"]
