"""Made-up worlds of scored tokens, for the slow statistics and for the real ones."""

import numpy as np

from heldin.models.token_scores import TokenScores


def made_world(rng, *, users=7, most_texts=4, most_tokens=50, words=12):
    """Texts and tokens of very unequal number; values on a grid of 1/8, so that ties occur and sums are exact."""
    world = {}
    for user in range(users):
        texts = []
        for _ in range(int(rng.integers(1, most_texts + 1))):
            n = int(rng.integers(1, most_tokens + 1))
            ids = rng.integers(0, words, n)
            reference = -rng.integers(1, 64, n) / 8
            target = np.minimum(reference + rng.integers(-6, 8, n) / 8, -0.125)
            ranks = rng.integers(0, 3, n)
            texts.append(list(zip(ids.tolist(), target.tolist(), reference.tolist(), ranks.tolist(), strict=True)))
        world[f"user {user}"] = texts
    return world


def scored(world):
    """(owners, texts, scores under the target, under the reference), as ``Attack.statistics`` takes them."""
    owners = [user for user, texts in world.items() for _ in texts]
    columns = [list(zip(*text, strict=True)) for texts in world.values() for text in texts]
    target = [
        TokenScores(np.array(t, np.float32), ranks=np.array(rank, np.int32), ids=np.array(ids, np.int32))
        for ids, t, _, rank in columns
    ]
    return (
        owners,
        ["some words"] * len(owners),
        target,
        [TokenScores(np.array(r, np.float32)) for _, _, r, _ in columns],
    )


def statistics_of(attack, world):
    """(user, number of the text) -> statistic."""
    return {(s.user, s.text): s.value for s in attack.statistics(*scored(world))}
