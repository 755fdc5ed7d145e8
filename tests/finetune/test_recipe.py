"""The schedule and its constants."""

import pytest

from heldin.finetune.recipe import Optimizer, Recipe, Schedule
from tests.refusals import refused


def test_the_papers_defaults():
    recipe = Recipe()
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate, recipe.warmup_steps) == (10, 8, 5e-5, 200)
    assert (recipe.optimizer.value, recipe.select.value) == ("adam", "best")


def test_the_learning_rate_warms_up_and_decays_linearly_to_zero():
    recipe = Recipe(learning_rate=1.0, warmup_steps=10)
    rates = [recipe.learning_rate_at(step, 110) for step in range(110)]
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.5)
    assert 0 < rates[-1] == pytest.approx(0.01)
    assert Recipe(learning_rate=1.0, warmup_steps=200).learning_rate_at(0, 100) == pytest.approx(0.1)
    assert Recipe(learning_rate=1.0).learning_rate_at(0, 1) == 1.0


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", {0: 0.1, 9: 1.0, 10: 1.0, 35: 0.75, 60: 0.5, 109: 0.01}),
        # Half a wave over the 100 steps after the warm-up: cos(pi / 4) at their quarter.
        ("cosine", {0: 0.1, 9: 1.0, 10: 1.0, 35: (1 + 0.5**0.5) / 2, 60: 0.5, 109: 0.0002467}),
        ("constant_with_warmup", {0: 0.1, 9: 1.0, 10: 1.0, 60: 1.0, 109: 1.0}),
        ("constant", {0: 1.0, 9: 1.0, 60: 1.0, 109: 1.0}),
    ],
)
def test_the_learning_rate_of_each_schedule(schedule, expected):
    recipe = Recipe(learning_rate=1.0, warmup_steps=10, schedule=Schedule(schedule))
    assert {step: recipe.learning_rate_at(step, 110) for step in expected} == pytest.approx(expected, rel=1e-3)
    # A run of one step, and one without warm-up, have a rate too.
    assert recipe.learning_rate_at(0, 1) == 1.0


@pytest.mark.parametrize(("optimizer", "momentum"), [("adam", 0.9), ("adafactor", 0.1), ("sgd", 1.0), ("sgd", -0.1)])
def test_momentum_belongs_to_sgd(optimizer, momentum):
    # Set for another optimizer, it would change nothing, and the config would describe a run that nobody made.
    with refused(by="Recipe.__post_init__", naming=("finetune.momentum", momentum, optimizer)):
        Recipe(optimizer=Optimizer(optimizer), momentum=momentum)


def test_steps_and_evaluations():
    assert Recipe(epochs=10, batch_size=8).steps(100) == 130
    assert Recipe(epochs=0.1, batch_size=8).steps(5) == 1
    assert Recipe(evaluations=4).evaluation_steps(100) == [25, 50, 75, 100]
    assert Recipe(evaluations=10).evaluation_steps(3) == [1, 2, 3]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("learning_rate", -1.0),
        ("micro_batch", 0),
        ("evaluations", 0),
        ("weight_decay", -1),
    ],
)
def test_constants_that_cannot_be(field, value):
    with refused(by="Recipe.__post_init__", naming=(f"finetune.{field}", value)):
        Recipe(**{field: value})
