"""What every attack and every aggregation must do, whatever its statistic."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heldin.attacks as attacks
from heldin.attacks.access import Access
from heldin.attacks.answering import Answering, score_by_answers
from heldin.attacks.joint import JointAttack
from heldin.attacks.kinds import ATTACKS, get_attack
from heldin.attacks.protocol import AGGREGATIONS, TextAttack, UserScores, Uses, lift_to_users, user_scores
from heldin.attacks.sampling import SamplingConfig
from heldin.attacks.scoring import AttackTexts, score_attacks
from heldin.base.errors import InputError
from heldin.models.answers import AnswerStore
from heldin.models.logprobs import score_texts
from heldin.models.score_cache import ScoreCache
from heldin.models.token_scores import TokenScores
from heldin.testing.attacks import check_attack
from tests.refusals import refused

every_attack = pytest.mark.parametrize("attack", list(map(get_attack, ATTACKS.ours)), ids=list(ATTACKS.ours))
OF_TEXTS = [its for its in map(get_attack, ATTACKS.ours) if not isinstance(its, JointAttack)]
every_attack_of_texts = pytest.mark.parametrize("attack", OF_TEXTS, ids=[its.name for its in OF_TEXTS])
every_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS)
TEXT = "The river opens the letter on day 7."


def _scores(logprobs, *, means=-5.0, deviations=2.0):
    values = np.asarray(logprobs, dtype=np.float32)
    ranks, ids = np.ones(values.size, dtype=np.int32), np.arange(values.size, dtype=np.int32)
    return TokenScores(values, np.full_like(values, means), np.full_like(values, deviations), ranks, ids)


@every_attack
def test_it_does_what_every_attack_must(attack):
    check_attack(type(attack), attack.name)


def test_only_scores_fitted_to_audited_coins_certify_nothing():
    assert [its for its in Uses if not its.certifiable] == [Uses.COINS]


class Honest(TextAttack):
    """A difference of sums, as far as the tests below leave it."""

    uses = Uses.MODEL
    needs_reference = True

    def statistic(self, text, target, reference):
        return target.total - reference.total


class Flipped(Honest):
    def statistic(self, text, target, reference):
        return reference.total - target.total


class Fitted(Honest):
    uses = Uses.COINS


class Undeclared(Honest):
    uses = "the model"


class Rolling(Honest):
    def statistic(self, text, target, reference):
        return super().statistic(text, target, reference) + RNG.random() * 1e-3


class Undefined(Honest):
    def statistic(self, text, target, reference):
        return super().statistic(text, target, reference) if target.logprobs[0] else float("nan")


class Dropping(Honest):
    def statistics(self, owners, texts, target, reference):
        return super().statistics(owners, texts, target, reference)[:-1]


class Hungry(Honest):
    needs_reference = False


class OfRanks(Honest):
    def statistic(self, text, target, reference):
        return super().statistic(text, target, reference) + target.ranks.sum()


class Naming(Honest):
    """Knows members by name."""

    def statistics(self, owners, texts, target, reference):
        found = super().statistics(owners, texts, target, reference)
        return [replace(its, value=its.value + 9 * its.user.startswith("member")) for its in found]


class Ordering(Honest):
    def statistics(self, owners, texts, target, reference):
        found = super().statistics(owners, texts, target, reference)
        return [replace(its, value=its.value + 1e-2 * i) for i, its in enumerate(found)]


class Reading(Honest):
    """Looks up who is a member."""

    def statistic(self, text, target, reference):
        return super().statistic(text, target, reference) + len(Path("/etc/hostname").read_text()) * 0


class Scaling(Honest):
    """Measures a user by all others, and does not say so."""

    def statistics(self, owners, texts, target, reference):
        found = super().statistics(owners, texts, target, reference)
        spread = np.std([its.value for its in found])
        return [replace(its, value=its.value / spread) for its in found]


class Listing(JointAttack):
    uses = Uses.MODEL

    def values(self, tokens):
        return [1.0] * (tokens.users + 1)


class Argued(Honest):
    def __init__(self, name, scale):
        super().__init__(name)


RNG = np.random.default_rng(0)


def test_an_honest_attack_passes():
    check_attack(Honest)


@pytest.mark.parametrize(
    ("liar", "said"),
    [
        (Flipped, "direction"),
        (Fitted, "uses"),
        (Undeclared, "uses"),
        (Rolling, "determinism"),
        (Undefined, "finite"),
        (Dropping, "complete"),
        (Hungry, "needs"),
        (OfRanks, "needs"),
        (Naming, "names"),
        (Ordering, "order"),
        (Reading, "files"),
        (Scaling, "uses"),
        (Listing, "needs"),
        (Argued, "made"),
    ],
)
def test_a_liar_is_found(liar, said):
    with pytest.raises(AssertionError, match=f"- {said}: "):
        check_attack(liar)


@every_attack_of_texts
def test_what_it_needs_and_does_not_get_is_one_line(attack):
    target = TokenScores(np.asarray([-1.0, -2.0], dtype=np.float32))
    if attack.needs_reference:
        with pytest.raises(InputError, match=f"attack '{attack.name}' needs a reference model"):
            attack.statistic(TEXT, target, None)
    if attack.needs_moments:
        with pytest.raises(InputError, match="needs the mean and deviation of log-probabilities"):
            attack.statistic(TEXT, target, None)


@every_attack
def test_it_runs_on_real_models_and_does_not_see_the_order_of_users(attack, make_lm, tmp_path):
    texts = {"b": ["The river is wide today."], "a": [TEXT, "The market counts the story."], "c": ["x y z and more"]}
    models = make_lm(seed=1), make_lm(seed=0)

    def scored(texts):
        if attack.access is Access.LOG_PROBABILITIES:
            return score_attacks([attack], AttackTexts.of(texts), *models, ScoreCache(tmp_path))
        answering = Answering(SamplingConfig(samples=2, tokens=8), AnswerStore(tmp_path))
        return score_by_answers([attack], AttackTexts.of(texts), *models, answering)

    one = user_scores(scored(texts), attack.name)
    two = user_scores(scored(dict(sorted(texts.items()))), attack.name)
    expected = one.of(["a", "b", "c"]).tolist()
    # Sums over all users are taken in another order.
    assert two.of(["a", "b", "c"]).tolist() == (
        pytest.approx(expected, rel=1e-9, abs=1e-12) if isinstance(attack, JointAttack) else expected
    )


@every_aggregation
def test_an_aggregation_is_that_of_numpy_and_ignores_order(aggregation):
    values = [3.0, -1.0, 2.0]
    scores = lift_to_users("x", {"a": values, "b": values[::-1], "c": [5.0]}, aggregation)
    assert scores.values.tolist() == pytest.approx([getattr(np, aggregation)(values)] * 2 + [5.0])


@every_aggregation
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_names_its_user(aggregation, value):
    with refused(naming=("'x'", "2 of 2", value)):
        lift_to_users("x", {"ann": [1.0], "bob": [value]}, aggregation)


def test_scores_that_cannot_be():
    with pytest.raises(InputError, match="unknown aggregation 'median': choose from mean, min, max"):
        lift_to_users("x", {"a": [1.0]}, "median")
    with pytest.raises(InputError, match="attack 'x': user 'a' has no text to score"):
        lift_to_users("x", {"a": []})
    with pytest.raises(InputError, match="attacks: there is no 'magic'. Choose from likelihood-ratio, "):
        get_attack("magic")
    with pytest.raises(InputError, match="attack 'x' gave one user two scores"):
        UserScores("x", ("a", "a"), np.zeros(2))
    with pytest.raises(InputError, match="attack 'x' gave no score for 1 of"):
        UserScores("x", ("a",), np.zeros(1)).of(["a", "b"])


def test_an_attack_module_knows_nothing_of_membership_or_defense():
    """The import layers say so too; this reads the words that would betray it."""
    for path in Path(attacks.__file__).parent.glob("*.py"):
        names = {n.id for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Name)}
        assert not names & {"member", "membership", "Role", "ledger", "Ledger", "held_in", "held_out"}, path


def test_both_models_score_the_same_characters(make_lm, tmp_path):
    long = "The market counts the story on day 7. " * 20
    cut = AttackTexts.of({"a": [long]}, max_characters=50)
    ratio = get_attack("likelihood-ratio")
    target, reference = make_lm(seed=1, context=8), make_lm(seed=0, context=32)
    found = score_attacks([ratio], cut, target, reference, ScoreCache(tmp_path))[0].value
    expected = score_texts(target, [long[:50]])[0].total - score_texts(reference, [long[:50]])[0].total
    assert found == pytest.approx(expected, abs=1e-3)
    with pytest.raises(InputError, match=r"attack.max_characters is 0: give at least 1"):
        AttackTexts({}, max_characters=0)
    with pytest.raises(InputError, match="attack 'likelihood-ratio' needs a reference model: give a reference model"):
        score_attacks([ratio], cut, target, None, ScoreCache(tmp_path))
