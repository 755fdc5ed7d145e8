"""How work that goes on side by side is shown: a table on a terminal, lines elsewhere."""

import io
import threading
import time

from rich.console import Console

import heldin.base.progress as progress
from heldin.base.progress import LineReporter, SilentReporter, TerminalReporter, WorkOverview, logged


def standing(rows):
    return WorkOverview(
        columns=("cell", "state", "last line"),
        rows=rows,
        caption="1 of 3 cells done, about 60 s left",
        lines=[f"cell {row[0]}: {row[2]}" for row in rows],
    )


def until(condition):
    ended = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ended
        time.sleep(0.01)


def test_lines_are_written_again_and_again_until_the_work_ends(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_TABLES", 0.01)
    said, looks = [], []

    def look():
        looks.append(len(looks))
        return standing([("1/none", "at work", f"step {len(looks)}")])

    with LineReporter(said.append).follow(look):
        until(lambda: len(said) >= 3)
    assert said[:2] == ["cell 1/none: step 1", "cell 1/none: step 2"]
    ended = len(looks)
    time.sleep(0.05)
    assert len(looks) == ended, "nobody looks once the work has ended"
    assert threading.active_count() < 20


def test_a_table_on_a_terminal_shows_rows_as_they_are_and_no_more_than_fit():
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=70, height=8)
    rows = [("1/none", "at work", "[bold]not markup[/bold]"), *((f"2/v{i}", "done", "") for i in range(50))]
    with TerminalReporter(console).follow(lambda: standing(rows)):
        pass
    shown = written.getvalue()
    assert "[bold]not markup[/bold]" in shown
    assert "1 of 3 cells done, about 60 s left" in shown
    assert "2/v2" in shown
    assert "2/v9" not in shown


def test_others_show_nothing_and_a_log_passes_it_on(tmp_path):
    looked = []
    with SilentReporter().follow(lambda: looked.append(1)):
        pass
    assert not looked
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=70, height=8)
    with (
        logged(TerminalReporter(console), tmp_path, command="heldin sweep") as kept,
        kept.follow(lambda: standing([("1/none", "at work", "step 1")])),
    ):
        pass
    assert "step 1" in written.getvalue()
    assert "step 1" not in (tmp_path / "log.txt").read_text(encoding="utf-8")
