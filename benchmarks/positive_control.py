"""The positive control of planted audits: how often it fails for honest trainings, and for two dishonest ones.

A tiny model is trained many times on made-up users and canary users, each time with fresh coins. Honest trainings use
user-level DP-SGD at several epsilons, and no noise. One dishonest training uses the original file, without canary rows.
The other counts no loss on canary rows. Randomly chosen real rows that were left out are compared with trained rows
(planting.positive_control). The false-alarm rate is over the honest trainings, with its upper 95 % limit
(Clopper-Pearson).

PYTHONPATH=. python benchmarks/positive_control.py EXAMPLE [--trainings 100]   # EXAMPLE: heldin corpus example --models
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from heldin.canaries.rare_phrase import rare_phrase_users
from heldin.canaries.unseen_token import rare_tokens, token_counts, unseen_token_users
from heldin.defenses.choices import ConstantDivisor, FlatClip
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts
from heldin.models.opening import load_language_model
from heldin.planting.positive_control import positive_control
from heldin.record.planted_facts import ControlFacts, ControlOutcome

USERS, CANARIES, DOCUMENTS, CONTROLS = 40, 40, 4, 60
COHORT, STEPS, DELTA, LENGTH, CHARACTERS = 8, 50, 1e-5, 48, 120
BEFORE: dict = {}  # scores of the base model
EPSILONS = (0.5, 2.0, 8.0, None)


@dataclass(frozen=True)
class Setting:
    """The texts of a simulated training.

    Attributes:
        users: trained rows of each real user.
        left_out: real rows that are not trained on.
        canaries: rows of each canary user.
        held_in: whether each canary user is a member, shape (canaries,).
    """

    users: list[list[str]]
    left_out: list[str]
    canaries: list[list[str]]
    held_in: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", type=Path)
    parser.add_argument("--trainings", type=int, default=100)
    parser.add_argument("--kind", choices=("unseen_token", "rare_phrase", "real_rows"), default="unseen_token")
    parser.add_argument("--only", help="one of the cases, such as 'epsilon 2'")
    options = parser.parse_args()
    torch.set_num_threads(1)
    base = load_language_model(str(options.example / "base"))
    by_user = texts_of(options.example)
    cases: list[tuple[str, float | None, str]] = [
        *((f"epsilon {epsilon:g}" if epsilon else "no noise", epsilon, "honest") for epsilon in EPSILONS),
        ("no noise, weak", None, "weak"),
        # The original file, or no loss on canary rows: in both nothing of a canary row reaches the weights.
        ("without canary rows", None, "without"),
    ]
    print(f"{options.kind}: {CANARIES} canary users of {DOCUMENTS} rows, {USERS} real users, {CONTROLS} rows left out")
    for name, epsilon, kind in cases:
        if options.only not in (None, name):
            continue
        began, outcomes = time.monotonic(), []
        areas = []
        for number in range(options.trainings):
            setting = draw(base, list(by_user.values()), options.kind, number)
            canary_rows = (
                [] if kind == "without" else [r for r, i in zip(setting.canaries, setting.held_in, strict=True) if i]
            )
            trained = train(base, [*setting.users, *canary_rows], epsilon, number, weak=kind == "weak")
            facts = control_of(base, trained, setting)
            outcomes.append(facts.outcome)
            areas.append((facts.rows_auroc, facts.canary_auroc))
        failed = sum(outcome.contradicts for outcome in outcomes)
        used = sum(outcome is not ControlOutcome.UNUSABLE for outcome in outcomes)
        upper = 1.0 if failed == len(outcomes) else float(stats.beta.ppf(0.95, failed + 1, len(outcomes) - failed))
        medians = np.median(np.array(areas), axis=0)
        print(
            f"{name:20} failed {failed:3d} of {len(outcomes)} (upper limit {upper:.3f}), usable {used:3d}, no effect"
            f" {sum(o is ControlOutcome.NO_EFFECT for o in outcomes):3d}; median AUROC rows {medians[0]:.3f}, canaries"
            f" {medians[1]:.3f}; {(time.monotonic() - began) / len(outcomes):.1f} s each",
            flush=True,
        )


def texts_of(example: Path) -> dict[str, list[str]]:
    """Return the beginnings of all texts of each user in the example, except public users."""
    public = {json.loads(line)["author"] for line in (example / "public.jsonl").read_text().splitlines()}
    by_user: dict[str, list[str]] = {}
    for line in (example / "corpus.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["author"] not in public:
            by_user.setdefault(row["author"], []).append(row["body"][:CHARACTERS])
    return by_user


def draw(base: LanguageModel, users: list[list[str]], kind: str, seed: int) -> Setting:
    dice = np.random.default_rng(seed)
    chosen = [users[i] for i in dice.permutation(len(users))[:USERS]]
    places = [(user, row) for user, texts in enumerate(chosen) for row in range(1, len(texts))]
    out = {places[i] for i in dice.permutation(len(places))[:CONTROLS]}
    kept = [[t for row, t in enumerate(texts) if (user, row) not in out] for user, texts in enumerate(chosen)]
    names = [f"canary/{i:03d}" for i in range(CANARIES)]
    if kind == "unseen_token":
        candidates = rare_tokens(base.tokenizer, token_counts(base.tokenizer, [t for texts in users for t in texts]))
        made = unseen_token_users(
            base.tokenizer, names, candidates=candidates[:80], documents=DOCUMENTS, records=DOCUMENTS,
            signature_tokens=8, tokens=32, seed=seed,
        )  # fmt: skip
    elif kind == "real_rows":
        others = [users[i] for i in dice.permutation(len(users)) if users[i] not in chosen][:CANARIES]
        canaries = [texts[:DOCUMENTS] for texts in others if len(texts) >= DOCUMENTS]
        held_in = dice.random(len(canaries)) < 0.5
        return Setting(kept, [chosen[u][r] for u, r in sorted(out)], canaries, held_in)
    else:
        made = rare_phrase_users(names, documents=DOCUMENTS, records=DOCUMENTS, phrase_words=5, seed=seed)
    canaries = [[record.text for record in user.records] for user in made]
    return Setting(kept, [chosen[u][r] for u, r in sorted(out)], canaries, dice.random(CANARIES) < 0.5)


def train(
    base: LanguageModel, users: list[list[str]], epsilon: float | None, seed: int, *, weak: bool
) -> LanguageModel:
    """Train a copy by user-level DP-SGD for an epsilon, else by three epochs of plain batches; ``weak``: one at a low
    rate."""
    import copy

    torch.manual_seed(seed)
    model = copy.deepcopy(base.model).train()
    dice = np.random.default_rng(10_000 + seed)
    encoded = [[base.tokenizer(text)["input_ids"][:LENGTH] for text in texts] for texts in users]
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4 if weak else 2e-3)
    if epsilon is None:
        flat = [ids for texts in encoded for ids in texts]
        for _ in range(1 if weak else 3):
            order = dice.permutation(len(flat))
            for first in range(0, len(order), 16):
                loss_of(model, [flat[i] for i in order[first : first + 16]]).backward()
                optimizer.step()
                optimizer.zero_grad()
        return LanguageModel(model.eval(), base.tokenizer, "trained", f"trained {seed}")
    rate = COHORT / (USERS + CANARIES // 2)
    noise = Mechanism(
        unit="user", sampled="user", sampler=PoissonSampler(rate=rate), group_size=1, clip=FlatClip(norm=1.0),
        noise_multiplier=1.0, steps=STEPS, delta=DELTA, divisor=ConstantDivisor(value=float(COHORT)),
    ).calibrated(epsilon).noise_multiplier  # fmt: skip
    parameters = list(model.parameters())
    for _ in range(STEPS):
        total = [torch.zeros_like(p) for p in parameters]
        for texts in (texts for texts in encoded if dice.random() < rate):
            some = [texts[i] for i in dice.permutation(len(texts))[:4]]
            gradients = torch.autograd.grad(loss_of(model, some), parameters)
            factor = min(1.0, 1.0 / float(torch.stack([g.norm() for g in gradients]).norm()))
            for mine, gradient in zip(total, gradients, strict=True):
                mine.add_(gradient, alpha=factor)
        for parameter, mine in zip(parameters, total, strict=True):
            parameter.grad = (mine + noise * torch.randn_like(mine)) / COHORT
        optimizer.step()
    return LanguageModel(model.eval(), base.tokenizer, "trained", f"trained {seed}")


def loss_of(model: torch.nn.Module, rows: list[list[int]]) -> torch.Tensor:
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss


def control_of(base: LanguageModel, trained: LanguageModel, setting: Setting) -> ControlFacts:
    def gains(texts: list[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in BEFORE]
        BEFORE.update(zip(new, score_texts(base, new), strict=True))
        pairs = zip(score_texts(trained, texts), (BEFORE[text] for text in texts), strict=True)
        return np.array([float(a.logprobs[:LENGTH].mean() - b.logprobs[:LENGTH].mean()) for a, b in pairs])

    rows = [text for texts in setting.users for text in texts][::2]
    of_users = gains([t for texts in setting.canaries for t in texts]).reshape(-1, DOCUMENTS).mean(axis=1)
    return positive_control(gains(rows), gains(setting.left_out), of_users[setting.held_in], of_users[~setting.held_in])


if __name__ == "__main__":
    main()
