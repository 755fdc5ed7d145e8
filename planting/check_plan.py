"""``heldin plant --check``: report every problem that would stop a planting, and the possible certificates of the
audit."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from heldin.audit.canary_groups import kinds_of
from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.canaries.users import Canary
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.store import Corpus
from heldin.models.loading import LanguageModel
from heldin.planting.beforehand import control_lines, forecast_lines
from heldin.planting.control import unseen_rows
from heldin.planting.plant import reference_model, require_readable, with_attack
from heldin.planting.plant_config import PlantConfig
from heldin.planting.plant_data import corpus_of, forms_of
from heldin.planting.records import CORPUS, Copied, copy_records, telling_of
from heldin.planting.training_set import TrainingSet, training_set
from heldin.stages.sides.layout import Layout, laid_out
from heldin.stages.sides.planting import plant as make_canaries


@dataclass(frozen=True)
class CheckedPlan:
    """The result of a check.

    Attributes:
        problems: one line for each problem that would stop the planting; may be empty.
        rows: number of usable rows; None if the training set is unreadable.
        late_rows: number of rows without a scored token within the length limit.
        audited: number of real users whom the audit would include.
        canaries: number of canary users to plant. Each of their rows has a scored token within the length limit.
        primary_attack: name of the attack that would be judged.
        lines: lines for the user about the price, and about the possible certificates of the audit.
    """

    problems: tuple[str, ...]
    rows: int | None = None
    late_rows: int = 0
    audited: int = 0
    canaries: int = 0
    primary_attack: str | None = None
    lines: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return {"ok": not self.problems, **asdict(self)}


def check_plan(config: PlantConfig, reporter: Reporter) -> CheckedPlan:
    """Check the training set and the plan without drawing a coin. Writes nothing outside the cache."""
    try:
        require_readable(config)
        base = reference_model(config)
        source = training_set(config, base.tokenizer)
    except InputError as error:
        return CheckedPlan((str(error),))
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        check = _Check(with_attack(config, source, base, reporter), source, base, Path(temporary), reporter, problems)
        kept, unseen = check.records(), check.unseen()
        laid = None if kept is None else check.layout(kept)
    primary = check.config.attack.primary
    if kept is None:
        return CheckedPlan(tuple(problems), primary_attack=primary)
    plan = CheckedPlan(tuple(problems), kept.rows, kept.late_rows, primary_attack=primary)
    if laid is None:
        return plan
    layout, canaries = laid
    users = len(layout.pool.names)
    lines = forecast_lines(check.config, users, len(canaries), kinds_of(canaries))
    lines += control_lines(check.config, kept.rows, unseen)
    return replace(plan, audited=users, canaries=len(canaries), lines=tuple(lines))


def lines(plan: CheckedPlan) -> list[str]:
    """Return the result as lines for the terminal."""
    late = f", {plan.late_rows:,} of them without a scored token within the length limit" if plan.late_rows else ""
    return [
        f"training set: {plan.rows or 0:,} rows{late}",
        f"audited: {counted(plan.audited, 'real user')} and {counted(plan.canaries, 'canary user')}",
        "canary rows: each has a scored token within the length limit",
        f"primary attack: {plan.primary_attack}",
        *plan.lines,
        "nothing was drawn or written",
    ]


@dataclass(frozen=True)
class _Check:
    """A planting that stops before heldin draws a coin.

    Attributes:
        folder: temporary folder.
        problems: list that receives one line per problem.
    """

    config: PlantConfig
    source: TrainingSet
    base: LanguageModel
    folder: Path
    reporter: Reporter
    problems: list[str]

    def records(self) -> Copied | None:
        """Copy the records, and add problems with bad rows and with columns that identify people. None if no row is
        usable."""
        columns = self.config.columns
        telling = telling_of(
            self.config,
            frozenset({columns.user, columns.id, columns.date, columns.rejected, *self.source.text.columns}),
        )
        try:
            kept = copy_records(self.source, self.folder / "ledger", self.reporter, on_bad=OnBadRows.SKIP, telling=None)
        except InputError as error:
            self.problems.append(str(error))
            return None
        counts = {OnBadRows.SKIP: 0, OnBadRows.SKIP_EMPTY: kept.skipped.unusable, OnBadRows.STRICT: kept.skipped.rows}
        if refused := counts[self.config.bad_rows]:
            self.problems.append(
                f"{counted(refused, 'row')} cannot be used. The first one: {kept.skipped.first}. Correct these rows, or"
                " leave them out with --skip-bad-rows"
            )
        if telling is not None:
            for record, row in self.source.rows(BadRows(OnBadRows.SKIP)):
                telling.look(record["user"] or "", row)
            if problem := telling.problem():
                self.problems.append(f"'{self.source.path}': {problem}")
        return kept

    def unseen(self) -> int:
        """Return the number of rows in the sample of ``unseen``, and add problems with its file."""
        try:
            return sum(1 for _ in unseen_rows(self.config, self.source))
        except InputError as error:
            self.problems.append(str(error))
            return 0

    def layout(self, kept: Copied) -> tuple[Layout, Mapping[str, Canary]] | None:
        """Return the planned layout and the canary users. If the layout is impossible, add the reason and return
        None."""
        run = self.config.run_config(self.folder / "ledger" / CORPUS)
        try:
            corpus = corpus_of(self.config, run, self.reporter)
            store: Corpus = corpus.store
            canaries: Mapping[str, Canary] = {}
            if run.canaries:
                forms = forms_of(self.config, run, corpus, self.source, kept.late)
                store = planted = make_canaries(run, corpus, self.base, self.folder, self.reporter, forms)
                canaries = planted.canaries
            return laid_out(run, corpus, store, canaries, self.reporter, None)[0], canaries
        except InputError as error:
            self.problems.append(str(error))
            return None
