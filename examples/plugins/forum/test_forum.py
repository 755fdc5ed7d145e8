from heldin_forum import Forum

from heldin.testing import check_source


def test_it_gives_records_as_every_source_does(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "one.txt").write_text("cid | Something else.\n", encoding="utf-8")
    for source in Forum.examples("forum", tmp_path):
        check_source(source, Forum(kind="forum", path=other))
