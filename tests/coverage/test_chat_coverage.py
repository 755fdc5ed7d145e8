"""Audits of chats and of pairs that trained on nobody raise alarms at their level, as audits of texts do.

The target and the reference are two untrained models, so that no coin moves a score. What the assistant says is scored
under both, after all that precedes it, or compared with what both answer there, as an audit does.
"""

import functools

import numpy as np
import pytest

from heldin.attacks.kinds import ATTACKS, get_attack
from heldin.attacks.protocol import lift_to_users
from heldin.attacks.sampling import SamplingConfig
from heldin.attacks.scoring import AttackTexts, score_attacks
from heldin.base.progress import SilentReporter
from heldin.bounds import one_run
from heldin.bounds.scores import LabelledScores
from heldin.corpus.chat.conversation import conversation_of, format_of_row
from heldin.corpus.chat.template import CHATML, ChatTemplate
from heldin.corpus.document import Counting
from heldin.corpus.made_up.chats import MadeUpRows, made_up_rows
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.corpus.sources.rows import Columns
from heldin.models.loading import LanguageModel
from heldin.models.model_config import TinyModel
from heldin.models.score_cache import ScoreCache
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.stages.measures.scores import statistics_under
from tests.coverage.measure import most_wrong

pytestmark = pytest.mark.slow  # scores some hundred chats, and throws thousands of coins

USERS, TRIALS = 60, 2000
SHAPE = TinyModel(vocabulary=400, context=128, hidden=32, layers=1, heads=2)
SAMPLING = SamplingConfig(cuts=(0.5,), samples=4, tokens=16, next_words=4)


@functools.cache
def written(kind):
    """Documents by user, and a tokenizer."""
    template, by_user = ChatTemplate(CHATML, {}), {}
    for row in made_up_rows(SyntheticCorpus(USERS, 4, 3, distinctiveness=0.9, seed=2), kind):
        form, column = format_of_row(row, Columns())
        document = template.document(conversation_of(row, form, column)).counting(form.counting)
        by_user.setdefault(row["user"], []).append(document)
    texts = [document.text for documents in by_user.values() for document in documents]
    return by_user, train_tokenizer(texts, SHAPE.vocabulary, CHATML)


ATTACKS_ON = [
    *((MadeUpRows.CHATS, name) for name in ATTACKS.ours),
    *((MadeUpRows.PAIRS, name) for name in ATTACKS.ours if get_attack(name).of_pairs),
]


@functools.cache
def scores(kind):
    """Each user's score by attack, with numbers that break ties."""
    by_user, tokenizer = written(kind)
    target, reference = (
        LanguageModel(new_tiny_model(SHAPE, tokenizer, seed), tokenizer, f"model {seed}", f"untrained on {kind} {seed}")
        for seed in (0, 1)
    )
    attacks = [get_attack(name) for rows, name in ATTACKS_ON if rows is kind]
    found: dict[str, dict[str, list[float]]] = {}
    for each in statistics_under(attacks, AttackTexts(by_user), target, reference, SAMPLING, SilentReporter()):
        found.setdefault(each.attack, {}).setdefault(each.user, []).append(each.value)
    ties = 1e-9 * np.random.default_rng(3).random(len(by_user))
    return {name: lift_to_users(name, values).values + ties for name, values in found.items()}


@functools.cache
def _rejected(game):
    return one_run.one_run_rejects(game, 0.0, 0.0, 0.05)


def _alarms(values, gain=0.0):
    """How often "nothing leaks" is rejected at 5 %, where members' scores are so many deviations higher."""
    rng, alarms = np.random.default_rng(4), 0
    for _ in range(TRIALS):
        member = rng.random(values.size) < 0.5
        moved = values + gain * values.std() * member
        alarms += _rejected(one_run.guess(LabelledScores(moved, member), values.size))
    return alarms


@pytest.mark.parametrize(("kind", "attack"), ATTACKS_ON)
def test_audits_that_trained_on_nobody_raise_alarms_at_their_level(kind, attack):
    alarms = _alarms(scores(kind)[attack])
    assert 0.01 * TRIALS < alarms <= most_wrong(TRIALS)


def test_a_leak_in_chats_raises_more():
    assert _alarms(np.random.default_rng(5).normal(size=USERS), gain=1.0) > 0.5 * TRIALS


def test_only_what_counts_of_a_chat_moves_a_score(tmp_path):
    """The question is read and not scored: where it says something else, no token of it enters a statistic."""
    by_user, tokenizer = written(MadeUpRows.CHATS)
    user, (document, *_) = next(iter(by_user.items()))
    lm = LanguageModel(new_tiny_model(SHAPE, tokenizer, 0), tokenizer, "a model", "a model")
    attack = get_attack("zlib")
    texts = [AttackTexts({user: [each]}) for each in (document, document.counting(Counting.ALL))]
    alone, whole = (next(iter(score_attacks([attack], its, lm, lm, ScoreCache(tmp_path)))).value for its in texts)
    assert alone != whole
