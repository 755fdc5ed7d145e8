"""The guide on corpora lists every format that heldin reads."""

from pathlib import Path
from typing import get_args

from heldin.corpus.sources.files import FileCorpus
from heldin.corpus.sources.open import FOLDERS, FORMATS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "corpora.md"


def test_the_guide_has_a_row_with_the_endings_of_every_format():
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    by_kind = {row[2].strip(): row for row in rows if len(row) == 4}
    for form in FORMATS:
        row = by_kind[form.kind]
        assert [end for end in form.endings if f"`{end}`" not in row[1]] == [], form.kind
        assert ("`.gz`" in row[1]) == form.packed
    assert {kind for kind, _, _ in FOLDERS} <= by_kind.keys()


def test_a_config_has_a_kind_for_every_format():
    assert set(get_args(FileCorpus.model_fields["kind"].annotation)) == {form.kind for form in FORMATS}
