"""What a sweep says afterwards: on the command line, as CSV, in its PDF and in the reports of its cells."""

import csv
import json
import re
import shutil

import pytest

import heldin.sweeps.processes as processes
from heldin.audit.decision import Answer
from heldin.record.document import read_record, write_record
from heldin.reports.record_report import list_facts
from heldin.reports.sweep_findings import comparison_text, summary_lines
from tests.made_facts import changed_record
from tests.refusals import names


def test_gradients_and_memory_of_a_cell(swept):
    _, out, _ = swept
    plain, uls = (read_record(out / f"cells/1/{name}/record.json") for name in ("none", "uls"))
    # Two epochs of every training record.
    assert plain.training.gradients == 2 * plain.training.records
    assert 0 < uls.training.gradients < uls.training.steps * uls.training.records
    assert 10**8 < plain.environment.peak_memory < 10**11


def test_the_result_is_read_again_and_told_by_compare(swept, call):
    _, out, result = swept
    code, printed, err = call("compare", out, "--json")
    assert code == 0, err
    facts = json.loads(printed)
    assert facts["variants"][1]["name"] == "uls"
    assert facts["answer"] in {answer.value for answer in Answer}
    assert facts["page_one"]["recommendation"][0]["code"].startswith("sweep_advice.")
    code, printed, _ = call("compare", out)
    assert printed.startswith(comparison_text(result, 80))
    assert max(map(len, printed.splitlines())) <= 80
    first = [line.split()[0] for line in comparison_text(result, 300).splitlines()]
    assert first[: len(result.variants) + 1] == ["variant", "plain", "uls", "apart"]
    # Below the table the lines of page one.
    told = " ".join(printed.split())
    assert all(" ".join(line.split()) in told for _, line in summary_lines(result))
    code, printed, _ = call("compare", out, "--csv")
    assert printed.splitlines()[0].startswith("name,group,defense,promise,unit,privacy_unit,trained_users,epsilon,")
    code, _, err = call("compare", out, "--over", "seed")
    assert code == 2
    assert names(err, "--over", "--out")
    code, printed, err = call("verify", out / "cells" / "2" / "uls", "--json")
    assert (code, json.loads(printed)["differences"]) == (0, []), err


def test_a_cells_report_says_whose_cell_it_is_and_what_the_model_is_good_for(swept):
    _, out, _ = swept
    record = read_record(out / "cells/2/uls/record.json")
    rows = dict(list_facts(record).pairs)
    assert rows["run of a sweep"] == f"repetition 2, uls; {record.cell.sweep[:16]}"
    said = rows["loss on test texts, nats per token"]
    assert said.startswith(
        f"{record.utility.loss:.3f} on {record.utility.texts} texts of {record.utility.users} non-members"
    )
    assert names(said, f"{record.utility.base_loss:.3f}")
    assert rows["gradients"].startswith(f"of {record.training.gradients:,} records")


def test_a_changed_loss_is_found_by_verify(swept, tmp_path, call):
    _, out, _ = swept
    cell = tmp_path / "cell"
    shutil.copytree(out / "cells" / "1" / "none", cell)
    its = read_record(cell / "record.json")
    better = its.utility.model_copy(update={"loss": its.utility.loss - 0.1})
    write_record(changed_record(its, utility=better.model_dump(mode="json")), cell / "record.json")
    code, printed, _ = call("verify", cell)
    assert (code, "measures.utility.loss" in printed) == (2, True), printed
    for damage in (lambda path: path.write_bytes(b""), lambda path: path.unlink()):
        damage(cell / "losses.parquet")
        code, _, err = call("verify", cell)
        assert (code, "losses.parquet'" in err) == (2, True), err


@pytest.mark.usefixtures("typeset")
def test_the_report_of_a_sweep_is_made_with_it_and_again_from_its_document(swept, call):
    _, out, result = swept
    (out / "report.pdf").unlink(missing_ok=True)
    code, printed, err = call("report", out, "--html")
    assert code == 0, err
    assert (out / "report.pdf").read_bytes().startswith(b"%PDF")
    assert (out / "report.html").stat().st_size < 3_000_000
    assert f"report: {out / 'report.pdf'}" in printed
    cell = out / "cells" / "1" / "none"
    code, printed, err = call("report", cell, "--html")
    assert code == 0, err
    assert f"{cell / 'report.html'}" in printed
    assert (cell / "report.html").stat().st_size < 3_000_000
    assert result.attacker.fpr == 0.05
    for its in result.variants:
        records = [read_record(out / "cells" / str(block) / its.name / "record.json") for block in (1, 2)]
        people = [record.flagged() for record in records]
        assert its.flagged.value == pytest.approx(sum(100 * each.members_share for each in people) / 2, abs=0.05)
        assert its.wrongly == pytest.approx(sum(100 * each.others_share for each in people) / 2, abs=0.05)
        assert its.dominated_by == []  # two blocks show nothing
    assert result.variants[1].differs["defense.kind"] == "uls"
    assert result.variants[1].epsilon_per_user == result.variants[1].epsilon
    assert result.variants[0].epsilon_per_user is None
    assert result.variants[1].ceiling is not None


def test_a_command_for_runs_says_that_a_folder_is_a_sweep_s(swept, call):
    _, out, _ = swept
    for words in (("verify", out), ("compare", out, out / "cells/1/uls")):
        code, _, err = call(*words)
        assert code == 2
        assert names(err, out, out / "cells/1/apart")


def test_the_table_of_a_sweep_as_csv_has_a_row_for_each_variant(swept, call):
    _, out, result = swept
    code, printed, err = call("compare", out, "--csv")
    assert code == 0, err
    rows = list(csv.DictReader(printed.splitlines()))
    assert [row["name"] for row in rows] == [its.name for its in result.variants]
    assert float(rows[1]["auroc"]) == result.variants[1].auroc.value
    assert not {"ceiling", "canaries", "bands", "differs"} & rows[0].keys()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("error: the score of user 'o'neil@example.com' is nan", "error: the score of user ..."),
        ("KeyError: 'alice'", "KeyError: ..."),
        ('error: user "o\'neil" is there twice', "error: user ..."),
        ("error: a held-out user's test text has no finite loss", None),
        ("error: '/runs/a' is damaged: remove it", None),
        ("error: '../a' is damaged: remove it", None),
        ("error: the score of user '.alice' is nan", "error: the score of user ..."),
    ],
)
def test_what_a_failed_cell_says_reaches_documents_up_to_what_it_quotes(said, shown):
    written = processes.without_names(said)
    if shown is None:
        assert written == said
    else:
        assert re.fullmatch(rf"{re.escape(shown)} \(.*config\.yaml.*\)", written)
        assert "'" not in written.replace("'s ", "")
