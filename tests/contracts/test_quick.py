"""``make quick`` chooses the tests that a change can break."""

from tests.quick import ROOT, affected_packages, affected_tests


def test_packages_above_a_change_are_affected_and_those_below_are_not():
    affected = affected_packages(["audit/roc.py"])
    assert {"audit", "record", "jobs", "reports", "commands"} <= affected
    assert not affected & {"base", "corpus", "models", "defenses", "bounds"}
    assert affected_packages(["docs/index.md", "README.md"]) == set()


def test_files_of_tests_follow():
    chosen = {
        path.relative_to(ROOT).as_posix() for path in affected_tests(["reports/pdf.py", "tests/base/test_files.py"])
    }
    assert {"tests/reports/test_pages.py", "tests/base/test_files.py", "tests/end_to_end/test_run.py"} <= chosen
    assert not chosen & {"tests/bounds/test_bands.py", "tests/audit/test_roc.py"}
    assert affected_tests(["docs/index.md"]) == []


def test_replications_run_for_a_change_of_theirs_alone():
    chosen = {path.parent.name for path in affected_tests(["replication/findings.py"])}
    assert chosen == {"replication"}
    assert "replication" not in {path.parent.name for path in affected_tests(["base/files.py"])}
