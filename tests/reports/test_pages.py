"""Reports as a reader sees them: page one contains what it must, nothing overlaps or runs off the paper.

Two are typeset: one of long names, and one with every optional part. What differs in words is in the content.
"""

import shlex
import subprocess

import numpy as np
import pypdfium2 as pdfium
import pytest
import yaml
from matplotlib.backends.backend_svg import FigureCanvasSVG

import heldin.reports.figures
from heldin.audit.decision import Answer
from heldin.audit.results import CanaryGroup, TrainingsFacts
from heldin.record.document import read_record, write_record
from heldin.record.facts import Ceiling, GradientNorms
from heldin.reports.blocks import FactList, Place, texts
from heldin.reports.html import render
from heldin.reports.limits import limit_rows
from heldin.reports.page_one import report_id, summary_lines
from heldin.reports.record_report import report_record
from heldin.reports.typesetting import write_pdf
from heldin.words.answer import ComparisonFlaw
from heldin.words.glossary import TERMS
from heldin.words.guarantee import GuaranteeCondition, GuaranteeText, ModelText, Relation
from tests.drafts import typesetting
from tests.made_facts import (
    attack_result,
    canary_facts,
    changed_record,
    decided_record,
    decision_of,
    estimate,
    evidence,
    score,
)
from tests.pdf_pages import FORM, lines_lie_apart, pages, write_report
from tests.refusals import names
from tests.reports.golden_pages import reports
from tests.reports.test_record_html import Page

MARGIN = 62.0  # points, of 2.2 cm
LONG = "a_very_long_name_of_an_audit_that_somebody_typed_without_a_single_blank-" * 3
LEAK = score(0.7, adjusted_p=0.001, tpr=0.3)
FLAW = ComparisonFlaw.GROUPS_DIFFER(baseline="bag of words", auroc=0.9, p=1e-9)


@pytest.fixture(scope="module")
def record(finished):
    return read_record(finished / "record.json")


def _ceiling(record):
    fpr = np.linspace(0, 1, 121)
    ceiling = Ceiling(auroc=0.83, fpr=fpr.tolist(), tpr=np.minimum(1, 3 * fpr**0.7).tolist())
    guarantee = GuaranteeText.HOLDS(
        promise=GuaranteeText.EPSILON(epsilon=8.0, delta=1e-5, unit="user", relation=Relation.ADD_REMOVE()),
        conditions=[GuaranteeCondition.NOISE(generator="Philox keyed per step")],
    )
    return record.training.model_copy(
        update={
            "epsilon": 8.0,
            "delta": 1e-5,
            "unit": "user",
            "defense": "uls",
            "promise": guarantee,
            "ceiling": ceiling,
        }
    )


def _canaries():
    groups = [
        CanaryGroup(
            kind="substring", length=n, documents=d, held_in=9, held_out=8, auroc=estimate(0.5 + n / 60, 0.4, 0.95)
        )
        for n in (1, 5, 25)
        for d in (None, 5)
    ]
    decision = decision_of(evidence(LEAK))
    norms = GradientNorms(edges=[0.1, 1.0, 10.0], canaries=[10, 20], real=[30, 10])
    return {"canaries": canary_facts(groups, decision=decision).model_dump(), "gradient_norms": norms.model_dump()}


CASES = ["leak", "none", "inconclusive", "invalid", "with epsilon", "with canaries"]


def made_of(record, case):
    """One of six records."""
    chance = [attack_result(0.5 + 0.004 * i, 0.45, 0.55, attack=name) for i, name in enumerate(_NAMES)]
    plain = [a.model_dump() for a in chance]
    match case:
        case "leak":
            named = [attack_result(0.5, 0.45, 0.55), attack_result(0.7, 0.65, 0.75, attack="loss")]
            its, command = evidence(score(0.5), LEAK), f"heldin run /{LONG}/{LONG}.yaml"
            return decided_record(record, its, name=LONG, command=command, attacks=[a.model_dump() for a in named])
        case "none":
            return decided_record(record, evidence(score(0.5, at_most=0.56)), attacks=plain)
        case "inconclusive":
            target = record.target.model_copy(update={"name": ModelText.NAMED(name=f"/models/{LONG}")})
            return decided_record(record, evidence(score(0.5, at_most=0.7), users=60), target=target.model_dump())
        case "invalid":
            split = record.split.model_copy(update={"certifiable": False, "known_by": "not known"})
            return decided_record(
                record, evidence(LEAK, flaws=(FLAW,), exact=False), split=split, training=None, exposure=None
            )
        case "with epsilon":
            return decided_record(record, evidence(LEAK, ceiling=0.83), training=_ceiling(record).model_dump())
        case _:
            return decided_record(record, evidence(LEAK), **_canaries())


_NAMES = ("likelihood-ratio", "likelihood-ratio-per-token", "loss", "zlib", "min-k++", "another", "one more")


@pytest.fixture(params=CASES, scope="module")
def drawn_record(request, record):
    """Each of the six, to be drawn without typesetting."""
    return made_of(record, request.param)


# The report of "everything" has more sections than that of "leak".
@pytest.fixture(params=[pytest.param("leak", marks=pytest.mark.slow), "everything"], scope="module")
def made(request, record):
    if request.param == "leak":
        return made_of(record, "leak")
    return made_of(record, "with canaries").model_copy(update={"training": _ceiling(record)})


@pytest.fixture(scope="module")
def printed(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    write_record(made, folder / "record.json")
    with typesetting():
        return pages(write_report(folder))


def test_page_one_is_one_page_with_answer_figure_lines_and_signature(made, printed):
    first, second = printed[:2]
    for label, text in summary_lines(made):
        # The terminal has the answer in one line, and each limit in a sentence.
        if label not in ("answer", "limit"):
            assert first.says(text), label
    for row in limit_rows(made):
        assert all(first.says(cell) for cell in row)
    assert first.says(made.decision.decision.answer.value.capitalize())
    assert first.says(report_id(made))
    figures_there = [box for kind, *box in first.boxes if kind == FORM]
    assert max((right - left) * (top - bottom) for left, bottom, right, top in figures_there) > 10_000
    assert first.says("Decision, based on")
    # The statistics begin on page two.
    assert second.says(made.decision.headline)
    assert not first.says(made.decision.headline)


def test_what_a_promise_rests_on_stands_among_the_facts_alone(made, printed):
    told = [page.text.count("Philox") for page in printed]
    assert told[0] == 0
    assert sum(told) == (made.training is not None and "Philox" in made.training.guarantee)


def test_headings_claim_no_more_than_stands_beneath_them(printed):
    assert not any(page.says("What is certified") for page in printed)


def test_nothing_runs_off_the_paper_or_into_the_margins(printed):
    for page in printed:
        for kind, left, bottom, right, top in page.boxes:
            assert left > MARGIN - 3, (kind, page.text[:80])
            assert right < page.width - MARGIN + 3, (kind, page.text[:80])
            assert bottom > 20
            assert top < page.height - 20


def test_only_the_last_page_may_be_less_than_half_full(printed):
    for page in printed[:-1]:
        # Without the line at the foot of every page.
        lowest = min(bottom for _, _, bottom, _, top in page.boxes if top > 60)
        assert lowest < page.height / 2, page.text[:80]


def test_the_configuration_is_attached_to_the_pdf(made, tmp_path):
    with typesetting():
        path = write_pdf(report_record(made), tmp_path / "report.pdf")
    document = pdfium.PdfDocument(path)
    attached = {document.get_attachment(i).get_name(): document.get_attachment(i).get_data() for i in range(1)}
    assert document.count_attachments() == 1
    assert yaml.safe_load(bytes(attached["configuration.yaml"])) == made.config
    # And is no page of it.
    assert "sequence_length:" not in "".join(page.text for page in pages(path))


def test_no_line_of_text_lies_on_another(printed):
    for page in printed:
        assert lines_lie_apart(page), page.text[:200]


def test_a_table_and_its_note_stand_on_one_page(printed):
    for page in printed:
        if page.says("N/A: too few"):
            assert page.says("True-positive rate at fixed false-positive rates")
        if page.says("If a baseline separates groups that heldin did not draw"):
            assert page.says("Blind baselines")


def test_every_word_that_needs_it_is_explained(made, printed):
    report = report_record(made)
    explained = {key: [term for term, _ in report.section(key).first(FactList).pairs] for key in ("terms", "glossary")}
    front = "\n".join(texts([section for section in report.sections if section.place is Place.FRONT])).lower()
    others = [section for section in report.sections if section.key not in explained]
    whole = "\n".join(texts(others)).lower()
    # Terms of page one are explained on page two, each once, and no term that nothing uses.
    assert explained["terms"] == [term for term in TERMS if term.lower() in front]
    assert set(explained["glossary"]) == {term for term in TERMS if term.lower() in whole} - set(explained["terms"])
    assert all(printed[1].says(term) for term in explained["terms"])
    assert ("canary user" in explained["terms"]) == (made.canaries is not None)


@pytest.mark.usefixtures("typeset")
def test_the_command_can_be_copied_from_pdf_and_web_page_and_pasted_into_a_shell(record, tmp_path):
    """Lines are broken in the layout: no character is added that a shell would take for a part of a name."""
    words = ["audit", "--model", "example/models_of_the_day/checkpoint-1000", "--held-in", "my files/held_in.jsonl"]
    words += ["--held-out", "held-out.jsonl", "--set", "decision.auroc=0.65", "--reference", f"/{LONG[:60]}/base"]
    made = changed_record(record, command=shlex.join(["heldin", *words]))
    write_record(made, tmp_path / "record.json")
    whole = "\n".join(page.text.replace("\r\n", "\n") for page in pages(write_report(tmp_path)))
    html = Page(render(report_record(made))).said
    for text in (whole, html):
        assert "\u200b" not in text
        begin = text.index("heldin audit --model")
        pasted = text[begin : text.index("/base", begin) + len("/base")]
        script = f"heldin() {{ printf '%s\\n' \"$@\"; }}\n{pasted}"
        shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
        assert shown.splitlines() == words


class _LaidOut:
    """In place of a canvas: the drawing is laid out, and nothing is written."""

    def __init__(self, drawn):
        self.drawn = FigureCanvasSVG(drawn).figure

    def print_svg(self, *_, **__):
        self.drawn.draw_without_rendering()


def drawn_of(report, *names):
    """These figures of a report, or all, as matplotlib has them, laid out."""
    with (
        typesetting(),
        pytest.MonkeyPatch.context() as patch,
        heldin.reports.figures.keep_drawings() as drawings,
    ):
        patch.setattr(heldin.reports.figures, "FigureCanvasSVG", _LaidOut)
        for name in names or report.figures:
            report.figures[name].draw()
    return drawings


@pytest.fixture(scope="module")
def drawings(drawn_record):
    """The figures of a record: of trainings too, where it has what they need."""
    drawings = drawn_of(report_record(drawn_record))
    if drawn_record.exposure:
        trainings = TrainingsFacts(
            runs=40, with_user=20, documents=2, target="defense", pilot=10, threshold=1.0, members=15,
            true_positives=9, non_members=15, false_positives=1, epsilon_lower=0.5, reach=1.0, seconds_each=1.0,
        )  # fmt: skip
        drawings += drawn_of(report_record(drawn_record.model_copy(update={"trainings": trainings})), "scores")
    return drawings


def _drawn_points(axes):
    """Points along all curves and outlines of the axes, in pixels."""
    for line in axes.get_lines():
        path = line.get_transform().transform_path(line.get_path()).interpolated(20)
        yield path.vertices
    for patch in axes.patches:
        yield patch.get_transform().transform_path(patch.get_path()).interpolated(20).vertices


def _within(points, box):
    x, y = points.T
    return (x > box.x0) & (x < box.x1) & (y > box.y0) & (y < box.y1)


def test_a_density_of_users_has_no_count_on_its_axis(drawn_record, drawings):
    """Heights are shares over widths: a tick there would read as 2.5 users."""
    densities = [axes for drawn in drawings for axes in drawn.axes if axes.get_ylabel() == "share of the group"]
    # A comparison that is not valid is not drawn.
    assert bool(densities) == (drawn_record.decision.decision.answer is not Answer.NOT_VALID)
    assert all(axes.get_yticks().size == 0 for axes in densities)


def test_no_legend_lies_on_what_is_drawn(drawings):
    assert len(drawings) >= 2
    for drawn in drawings:
        legends = [*drawn.legends, *(axes.get_legend() for axes in drawn.axes if axes.get_legend())]
        whole = drawn.get_window_extent()
        for box in (legend.get_window_extent() for legend in legends):
            assert box.x0 >= whole.x0 - 1
            assert box.x1 <= whole.x1 + 1
            assert box.y0 >= whole.y0 - 1
            assert box.y1 <= whole.y1 + 1
            for axes in drawn.axes:
                frame = axes.get_window_extent()
                for points in _drawn_points(axes):
                    assert not (_within(points, frame) & _within(points, box)).any()


@pytest.mark.parametrize("kind", ["run", "trainings", "planted", "sweep"])
def test_no_word_of_a_figure_is_cut_off(kind):
    for drawn in drawn_of(reports()[kind]):
        whole = drawn.get_window_extent()
        names = [text for axes in drawn.axes for text in (axes.xaxis.label, axes.yaxis.label, axes.title, *axes.texts)]
        for text in [text for text in [*names, *drawn.texts] if text.get_text()]:
            box = text.get_window_extent()
            assert whole.x0 - 1 <= box.x0, text
            assert whole.y0 - 1 <= box.y0, text
            assert box.x1 <= whole.x1 + 1, text
            assert box.y1 <= whole.y1 + 1, text


def test_the_best_attack_is_always_drawn_and_the_caption_says_which_are(plain, approved):
    weak = [attack_result(0.5 + 0.01 * i, 0.4, 0.6, attack=name) for i, name in enumerate(_NAMES)]
    made = decided_record(plain, evidence(score()))
    alone = [a if i == 0 else a.model_copy(update={"curve": None}) for i, a in enumerate(weak)]
    roc = report_record(made.model_copy(update={"attacks": alone})).figures["roc"]
    assert names(roc.caption, "7 scores")
    assert approved("leading alone", roc.caption)
    strong = [*weak[:2], attack_result(0.7, 0.6, 0.8, attack="loss"), *weak[3:]]
    named = evidence(score(), score(), score(0.7, name="loss", adjusted_p=0.001))
    made = decided_record(plain, named, attacks=[a.model_dump() for a in strong])
    two = [a if i in (0, 2) else a.model_copy(update={"curve": None}) for i, a in enumerate(strong)]
    roc = report_record(made.model_copy(update={"attacks": two})).figures["roc"]
    assert approved("leading and named", roc.caption)


def test_a_canary_caption_speaks_of_a_substring_only_where_there_is_one(record):
    groups = [
        CanaryGroup(kind="rare_phrase", length=None, documents=n, held_in=9, held_out=8, auroc=estimate(0.8, 0.6, 0.9))
        for n in (2, 9)
    ]
    facts = canary_facts(groups, decision=decision_of(evidence(LEAK)))
    made = decided_record(record, evidence(LEAK), canaries=facts.model_dump())
    caption = report_record(made).figures["canaries"].caption
    assert "documents" in caption
    assert "substring" not in caption
