from heldin_forum import Forum

from heldin.testing import check_source


def test_it_gives_records_as_every_source_does(tmp_path):
    check_source(*Forum.examples("forum", tmp_path))
