"""Approved words of made-up records: ``make golden`` writes them anew after a change of words."""

import os
import re
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from heldin.record.document import Record, read_record
from heldin.words.guarantee import GuaranteeText
from tests.made_facts import changed_record

GOLDEN_RECORD = Path(__file__).resolve().parents[1] / "golden" / "run" / "record.json"
FOLDER = Path(__file__).parent / "golden" / "cases"
Approved = Callable[[str, str], bool]


@pytest.fixture(scope="session")
def plain() -> Record:
    """The golden record as that of a run without a defense and canary users; its numbers are the same everywhere."""
    record = read_record(GOLDEN_RECORD)
    changes = {"defense": "none", "promise": GuaranteeText.NO_PROTECTION(), "unit": "none", "cautions": []}
    training = record.training.model_copy(update=changes)
    return changed_record(record, training=training.model_dump(), canaries=None)


def _read(path: Path) -> dict[str, str]:
    """The approved texts of a page, by case."""
    parts = re.split(r"^# (.+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE) if path.is_file() else [""]
    return {case: text.rstrip("\n") for case, text in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.fixture(scope="module")
def _page(request: pytest.FixtureRequest) -> Generator[tuple[dict[str, str], dict[str, str]]]:
    """The approved texts of a module of tests, and those that it made."""
    path, made = FOLDER / f"{request.path.stem.removeprefix('test_')}.txt", dict[str, str]()
    yield _read(path), made
    if "HELDIN_APPROVE" in os.environ and made:
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(f"# {case}\n{made[case]}\n" for case in sorted(made)), encoding="utf-8")


@pytest.fixture
def approved(request: pytest.FixtureRequest, _page: tuple[dict[str, str], dict[str, str]]) -> Approved:
    """``approved(case, text)`` returns whether the text is the approved one of this case of the test.

    The words of the reports of made-up records are in ``golden/cases``, a page for each module of tests.
    """
    texts, made = _page

    def check(case: str, text: str) -> bool:
        name = f"{request.node.name}: {case}"
        assert name not in made, f"two cases are called {name}"
        made[name] = re.sub(r"^#", r"\\#", text, flags=re.MULTILINE).rstrip("\n")
        if "HELDIN_APPROVE" not in os.environ:
            assert made[name] == texts.get(name), f"{name}: run `make golden` and read the difference"
        return True

    return check
