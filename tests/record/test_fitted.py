"""A table that fits a terminal: nothing is lost, whatever the width."""

import itertools

from heldin.record.compare import fitted

HEAD = ["run", "defense", "AUROC of the primary attack (95 %)", "never known", "answer"]
ROWS = [
    [f"a-run-with-a-long-name-{i}", "user-level sampling", f"0.{i}00 (0.400 to 0.600)", "-", "inconclusive"]
    for i in range(7)
]


def test_a_wide_terminal_has_rows_and_a_narrow_one_columns():
    wide = fitted(HEAD, ROWS, 200)
    assert len(wide) == len(ROWS) + 1
    assert wide[0].split("  ")[0] == "run"
    assert "never known" in wide[0]
    narrow = fitted(HEAD, ROWS, 80)
    assert [line for line in narrow if line.startswith("run ")]
    assert "never known" not in "\n".join(narrow)


def test_no_cell_is_lost_and_no_line_is_too_long():
    for width, rows in itertools.product((60, 80, 100, 140), (ROWS[:1], ROWS[:3], ROWS)):
        lines = fitted(HEAD, rows, width)
        assert max(map(len, lines)) <= width
        # Without spaces and line ends, as cells may be broken anywhere, and by column, as they stand side by side.
        text = "".join(sorted("".join(lines).replace(" ", "")))
        cells = "".join(sorted("".join(cell for row in rows for cell in row if cell != "-").replace(" ", "")))
        shown = list(text)
        for letter in cells:
            shown.remove(letter)


def test_many_rows_are_several_tables():
    lines = fitted(HEAD, ROWS * 6, 80)
    assert sum(line.startswith("run ") for line in lines) == lines.count("") + 1 == 14
