"""Lines that ``heldin plant`` prints before it writes: price in rows, possible certificates, recognisable traits."""

from collections import Counter
from collections.abc import Collection

from heldin.audit.canary_groups import kinds_of
from heldin.base.wording import counted
from heldin.bounds.power import forecast
from heldin.corpus.split import Part, Role
from heldin.planting.plant_config import PlantConfig
from heldin.planting.plant_data import canary_forms, control_rows, rows_of_control, taken_rows
from heldin.planting.positive_control import (
    LEAST_CANARIES,
    LEAST_ROWS,
    POWER,
    TARGET,
    canaries_needed,
    noticed_from,
)
from heldin.planting.training_set import TrainingSet
from heldin.record.condition_words import form_line
from heldin.record.planted_facts import FormFacts
from heldin.stages.sides.data import RunData
from heldin.stages.sides.panels import canaries_alone, number_of_groups


def said_beforehand(
    config: PlantConfig, data: RunData, source: TrainingSet, late: int, form: FormFacts | None
) -> list[str]:
    """Return lines about the best possible certificate, the price in rows, and traits that reveal canary users.

    Args:
        late: number of real rows without a scored token within the length limit.
        form: how well text alone distinguishes canary rows from real rows.
    """
    users, corpus = data.real(data.ledger.scored_users()), data.corpus.store
    replaced = {canary.source for canary in data.canaries.values() if canary.source is not None}
    rows = int(corpus.counts.sum())
    kept = int((data.training_rows < rows).sum())
    planted = len(data.training_rows) - kept
    always = sum(data.ledger.roles.get(user, Role.ALWAYS_IN) is Role.ALWAYS_IN for user in data.store.users)
    lines = [
        f"price: {rows - kept:,} of {rows:,} rows are not trained on (rows of non-members, rows set aside, rows of"
        f" {counted(len(replaced), 'user')} that canary users replace), and {counted(planted, 'row')} of canary"
        f" users are added; {counted(always, 'user')} are always members"
        if not canaries_alone(data)
        else f"price: {counted(planted, 'row')} of canary users are added; every real user is a member, and the audit"
        " is about canary users only"
    ]
    if controls := len(control_rows(config, data)):
        lines.append(
            f"price: {counted(controls, 'real row')}, drawn at random, are left out for the positive control"
            " (split.control_rows)"
        )
    if taken := len(taken_rows(data)):
        lines.append(
            f"price: {counted(taken, 'real row')} became rows of canary users, and a coin decides whether they are in"
            " training"
        )
    if late:
        lines.append(
            f"form: {counted(late, 'real row')} have no scored token in the first {config.sequence_length:,} tokens. A"
            " trainer may drop these rows, and the training log need not contain them"
        )
    lines += forecast_lines(config, len(users), len(data.canaries), kinds_of(data.canaries))
    if form is not None:
        lines.append(f"form: {form_line(form)}")
    return lines + _told_by_form(config, data) + _lent(config, data, source) + _left_out(source)


def forecast_lines(config: PlantConfig, users: int, canaries: int, kinds: Collection[str]) -> list[str]:
    """Return lines about the best possible certificate.

    Args:
        users: number of audited real users.
    """
    lines: list[str] = []
    sharing = config.looks * number_of_groups(len(kinds), canaries_alone=not users)
    if users:
        lines += forecast(users, config.audit.delta, sharing=sharing)
    if canaries:
        lines += forecast(canaries, config.audit.delta, units="canary users", unit="canary user", sharing=sharing)
    if sharing > 1:
        lines.append(
            f"power: these numbers are for each of {counted(config.looks, 'look')}. Looks and groups share the error"
            " probability; a claim about examples halves each share again"
        )
    return lines


def control_lines(config: PlantConfig, rows: int, unseen: int) -> list[str]:
    """Return lines about the effects that the audit's positive control will notice. No number depends on a coin.

    Args:
        rows: number of usable real rows.
        unseen: number of rows in the sample of ``unseen``.
    """
    canaries = planned_canaries(config)
    if not canaries:
        return []
    trained, others = rows_of_control(config, rows, unseen)
    if min(trained, others) < LEAST_ROWS or canaries < 2 * LEAST_CANARIES:
        return [
            "control: the audit cannot measure whether canary rows had an effect, so 'not contradicted' will be"
            f" indicative: {trained:,} trained and {others:,} other rows, {canaries:,} canary users. Give more rows"
            " with unseen, raise split.control_rows, or plant more canary users"
        ]
    compared = f"about {trained:,} trained and {others:,} other real rows, and {counted(canaries, 'canary user')}"
    least, wanted = noticed_from(trained, others, canaries), canaries_needed(trained, others, TARGET)
    power = (
        f"control: with {compared}, the audit notices a training that filters, unlearns or down-weights canary rows"
        f" with probability {POWER:g} if the AUROC of real rows is at least {least:.3g}"
        if least is not None
        else f"control: {compared} are too few to notice if training filters, unlearns or down-weights canary rows"
    )
    if least is not None and least <= TARGET:
        return [power]
    advice = (
        f"plant {wanted:,} canary users to notice such a training from an AUROC of {TARGET:g}"
        if wanted is not None
        else (
            f"to notice such a training from an AUROC of {TARGET:g}, give more rows with unseen, or raise"
            " split.control_rows"
        )
    )
    return [
        f"{power}; {advice}. 'Not contradicted' is certified only if canary rows plainly had an effect, or if the"
        " AUROC is at least this high"
    ]


def planned_power(config: PlantConfig, rows: int, unseen: int) -> float | None:
    """Return the lowest AUROC of real rows for which the audit relies on the control; None if the audit never relies on
    the control."""
    return noticed_from(*rows_of_control(config, rows, unseen), planned_canaries(config))


def planned_canaries(config: PlantConfig) -> int:
    """Return the number of canary users that the config plants."""
    return sum(section.count() or 0 for section in config.canaries)


def _told_by_form(config: PlantConfig, data: RunData) -> list[str]:
    """Return lines about traits of this training set that reveal canary users, whatever their texts."""
    lines = []
    made_up = _made_up(data)
    ledger, corpus = data.ledger, data.corpus.store
    # Of canary users whatever their coin, and of real ones as if all were held in: nothing here follows from a coin.
    audited = set(ledger.scored_users())
    real = {
        len(ledger.parts[user][Part.TRAIN]) if user in audited else corpus.count(user)
        for user in data.real(data.store.users)
    }
    alone = sorted({len(ledger.parts[user][Part.TRAIN]) for user in made_up} - real)
    if alone and config.columns.user is not None:
        some = " or ".join(map(str, alone))
        lines.append(
            f"form: no real user has {some} rows, so the number of rows reveals these canary users. Choose"
            f" numbers of documents that real users have, such as {_usual(real)}"
        )
    forms = canary_forms(data)
    lent = Counter(forms[row] for user in made_up for row in ledger.parts[user][Part.TRAIN])
    if lent and config.split.canaries_only:
        lines.append(
            f"form: {counted(len(lent), 'row')} in training lend their date and columns to {lent.total():,} canary"
            " rows. Values that should be unique then repeat"
        )
    elif lent and max(lent.values()) > 1:
        lines.append(
            f"form: {counted(len(lent), 'row')} set aside lend their date and columns to {lent.total():,} canary rows."
            " A value that should be unique then repeats"
        )
    return lines


def _made_up(data: RunData) -> list[str]:
    """Return the canary users with made-up texts. They replace nobody, and do not consist of real rows."""
    own = (user for user, canary in data.canaries.items() if canary.source is None)
    return [user for user in own if user not in data.of_real_rows]


def _usual(numbers: set[int]) -> str:
    """Return a few of these numbers, in ascending order."""
    ordered = sorted(numbers)
    chosen = dict.fromkeys(ordered[len(ordered) * i // 4] for i in range(4))
    return ", ".join(map(str, chosen))


def _lent(config: PlantConfig, data: RunData, source: TrainingSet) -> list[str]:
    """Return a line about columns that canary rows copy from other rows. Anyone who trains can read the copied
    values."""
    schema, columns = source.schema, source.columns
    own = {columns.user, columns.id, *source.text.columns}
    # Rows of JSON lines have columns of their own each.
    names = "all other columns" if schema is None else ", ".join(name for name in schema.names if name not in own)
    if not _made_up(data) or not names:
        return []
    whose = "other users' rows" if config.split.canaries_only else "rows set aside from audited users, members or not"
    return [f"form: canary rows copy {names} from {whose}: leave out columns that name or describe people"]


def _left_out(source: TrainingSet) -> list[str]:
    others = [name for name in source.splits() if name != source.split and name not in source.copied_splits]
    return [f"splits left out: {', '.join(others)} (list splits to copy in copied_splits)"] if others else []
