"""The result of an audit in numbers of people: flagged people, the worst-affected people, and the attacker."""

import math

from heldin.attacks.access import OF_RELEASE, Access
from heldin.attacks.protocol import Uses, how_aggregated
from heldin.audit.decision import Answer
from heldin.base.wording import counted
from heldin.record.document import Record
from heldin.record.release import release_of
from heldin.record.requirements import epsilon_per_entity, epsilon_per_user
from heldin.reports.blocks import Block, Paragraph
from heldin.reports.extraction import written_out
from heldin.reports.wording import attacker_asks, audited_by, of_real_rows, percent, texts_of
from heldin.words.guarantee import GuaranteeText

LARGEST_ODDS = 1e6  # above which odds say nothing that a reader could use
_WEIGHTS = (
    " The weights will be released. Anyone who has them can also compute gradients and inner values; attacks on these"
    " were not run."
)
_NAMED = {
    Access.LOG_PROBABILITIES: "log-probabilities",
    Access.TOP_K: "the likeliest next tokens",
    Access.TEXT: "text alone",
}


def describe_people(record: Record) -> list[Block]:
    """Return the details of the result in numbers of people."""
    blocks = [
        Paragraph(explain_people(record)),
        Paragraph(describe_worst_off(record), lead="Worst-affected people."),
        Paragraph(written_out(record), lead="Texts that the model would write."),
    ]
    return [block for block in blocks if block.text]


def explain_people(record: Record) -> str:
    """Return a text that explains the number of flagged people."""
    people = record.flagged()
    if people is None or people.members + people.others == 0:
        return ""
    right = 100 * people.members_share / (people.members_share + people.others_share)
    text = (
        f"If half of the people tested are members, {right:.0f} of every 100 flagged people are. If members are rarer,"
        " fewer are."
    )
    text += (
        " The threshold ends a group of ten people or more, so every count is about ten people at least. Of such ends,"
        f" it is the one that flags nearest to {percent(record.decision.by.fpr)} of the non-members."
    )
    if people.members_limits[1] < people.others_share:
        text += " The attack flags fewer members than guessing would."
    elif people.members_limits[0] <= people.others_share:
        text += " The interval includes the rate of guessing."
    if record.split.audited == "canaries":
        made = "have a few rows each" if of_real_rows(record) else "are made to be found"
        text += f" Canary users {made}: these are not numbers of real people."
    return text


def _attack(record: Record) -> str:
    """Return the name of the attack whose flagged people are counted."""
    result = record.counted_attack()
    return f"{result.attack} ({how_aggregated(result.aggregation)})"


def describe_worst_off(record: Record) -> str:
    """Return the odds for the worst-affected people, if the record limits them."""
    return " ".join([_by_promise(record), *_by_group(record), _not_told(record)])


def _by_promise(record: Record) -> str:
    epsilon, t = epsilon_per_user(record.training), record.training
    if t is None:
        return "Nothing limits the risk to a single person, because this audit does not know how the model was trained."
    if epsilon is None or t.delta is None:
        if t.epsilon is None:
            why = "the training has no guarantee"
            if t.promise.states(GuaranteeText.NO_PROTECTION):
                why = "only changes to the texts protect people" if t.removals else t.guarantee
        else:
            why = f"its epsilon is for {t.protected}, and a user may have several records"
        return f"No guarantee limits the risk to a single person: {why}."
    if t.protects_named and t.epsilon is not None:
        return _of_users_and_entities(record, epsilon, t.epsilon, t.delta)
    if _too_large(epsilon):
        return (
            f"The guarantee is for {_promised_to(record)}, but at epsilon {epsilon:.3g} it allows so much that it"
            " does not help."
        )
    return (
        f"The guarantee is for {_promised_to(record)}, also for the worst-affected. Anything that can happen to a"
        f" person through the model is {_at_most(epsilon)} as likely with the person's texts as without. Add a"
        f" probability of {t.delta:g}."
    )


def _of_users_and_entities(record: Record, user: float, pair: float, delta: float) -> str:
    """Return the odds under user-entity DP. The unit that the audit counts comes first."""
    held = [("what one user wrote", user)]
    if (entity := epsilon_per_entity(record.training)) is not None:
        held.append(("the texts that name one recognised entity", entity))
        if record.split.audited == "entities":
            held.reverse()
    by = record.training.by_exposure if record.training else None
    if entity is None and by is not None:
        # Two-level sampling: the more users name an entity, the less is promised to it.
        entities, missed = f"an entity that {counted(by.exposed, 'other user')} may name", ""
        held.append((f"a user's texts and those that name {entities}", pair))
    else:
        entities, missed = "every recognised entity", " A name that was not recognised is promised less, the more"
        missed += " records hold it."
        held.append(("a user's and an entity's texts together", pair))
    (first, least), *others = held
    others_text = "".join(f"; with {who} {_at_most(epsilon)}" for who, epsilon in others)
    return (
        f"The guarantee is for {_promised_to(record)} and {entities}, also for the worst-affected. Anything that can"
        f" happen through the model is {_at_most(least)} as likely with {first} in training as without{others_text}."
        f" Add a probability of {delta:g}.{missed}"
    )


def _too_large(epsilon: float) -> bool:
    return math.exp(min(epsilon, 700.0)) > LARGEST_ODDS


def _at_most(epsilon: float) -> str:
    """Return the factor e^epsilon as text."""
    if _too_large(epsilon):
        return f"so many times that it says nothing (epsilon {epsilon:.3g})"
    return f"at most {_factor(math.exp(epsilon))} times"


def _promised_to(record: Record) -> str:
    public = record.corpus.public_users
    if not public:
        return "every user"
    return f"every user but the {public:,} public ones"


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def _by_group(record: Record) -> list[str]:
    facts = record.trainings
    if facts is not None:
        if not facts.epsilon_lower:
            return []
        return [
            f"For this user, some outcome is at least {_factor(math.exp(facts.epsilon_lower))} times as likely with"
            f" the user's texts as without, or the reverse (epsilon at least {facts.epsilon_lower:.2f}, 95 %)."
        ]
    curve, words = record.counted_attack().curve, audited_by(record)
    if curve is None or record.decision.decision.answer is Answer.NOT_VALID:
        return []
    inside, outside = curve.histogram.held_in[-1], curve.histogram.held_out[-1]
    return [
        f"Measured: the {inside + outside:,} {words.unit} with the highest scores are {counted(inside, 'member')} and"
        f" {counted(outside, 'non-member')}."
    ]


def _not_told(record: Record) -> str:
    if record.trainings is not None:
        return "Other users may be affected more: their risk was not computed."
    return "The risk to one person was not computed."


def _uses(uses: Uses) -> str:
    return "it needs no other user's texts" if uses is Uses.MODEL else f"it uses {uses.stated}"


def describe_attacker(record: Record) -> str:
    """Return the attacker with its inputs, compared with the access that the release gives."""
    words, result, release = audited_by(record), record.counted_attack(), release_of(record.config)
    if record.trainings is not None:
        text = (
            "The attacker has the model that a training run released, and every document of one user. The attacker asks"
            " that model and the base model for the probabilities of these documents."
        )
    else:
        people = record.split.held_in + record.split.held_out
        texts = max(1, round(record.attacker_texts / max(1, people)))
        text = (
            f"The attacker can ask for {attacker_asks(result.asks)}. The attacker has about"
            f" {counted(texts, 'text')} of each {words.singular}, {texts_of(record.scored_texts.kind)}. The attack is"
            f" {_attack(record)}; {_uses(result.asks.uses)}."
        )
        if record.decides_by_a_dial():
            text += " The best score has one setting more, which the answer names."
    if release is None:
        return f"{text} Nobody stated who will get the model (release)."
    if release.access == "weights":
        return f"{text}{_WEIGHTS}"
    given, asks = OF_RELEASE[release.access], result.asks
    named = f"{text} The release names {_NAMED[given]}"
    if asks.access is not given:
        if asks.access in given.covers:
            return f"{named}, more than this attack asks for; attacks that use all of it could find more."
        return f"{named}, less than this attack asks for."
    if asks.needs_vocabulary:
        return f"{named}: this attack asks for more, those of all tokens and not of the text's alone."
    return f"{named}: that is what this attack asks for."
