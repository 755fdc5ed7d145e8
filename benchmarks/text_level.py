"""AUROC by the attacker's access: log-probabilities, the likeliest next tokens, or only text, by number of samples.

`python benchmarks/text_level.py --model MODEL --reference BASE --held-in FILE --held-out FILE` audits at all levels and
prints a table; a second call reads the answers from the cache. --figure PATH also draws the table. With --cost, it
instead times sampling against plain batched generation of as many tokens.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from heldin.attacks.access import Access
from heldin.attacks.answering import Answering, answers_of, cut_texts, score_by_answers
from heldin.attacks.kinds import DEFAULT_BY_LEVEL, get_attack
from heldin.attacks.protocol import TextStatistic, lift_to_users
from heldin.attacks.sampling import SamplingConfig
from heldin.attacks.scoring import AttackTexts, score_attacks
from heldin.audit.limits import auroc_limits
from heldin.base.files import cache_directory
from heldin.models.answers import AnswerRequest, AnswerStore, Prefix
from heldin.models.loading import LanguageModel
from heldin.models.opening import load_language_model
from heldin.models.sampling import sampled
from heldin.models.score_cache import ScoreCache
from heldin.models.token_scores import CutAnswers, TokenScores

SAMPLES = (1, 2, 4, 8, 16)


def read(path: Path, user: str, text: str, side: str) -> dict[str, list[str]]:
    """Return the texts in a file of JSON lines, by user."""
    by_user: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        by_user.setdefault(f"{side} {row[user]}", []).append(row[text])
    return by_user


def auroc(statistics: Sequence[TextStatistic], member: dict[str, bool], name: str) -> tuple[float, float, float]:
    """Return the AUROC of the mean over texts, with its 95 % interval."""
    by_user: dict[str, list[float]] = {}
    for each in statistics:
        if each.attack == name:
            by_user.setdefault(each.user, []).append(each.value)
    scores = lift_to_users(name, by_user)
    inside = np.array([member[user] for user in scores.users])
    limits = auroc_limits(scores.values[None, inside], scores.values[None, ~inside])
    return float(limits.auroc[0]), float(limits.lower[0]), float(limits.upper[0])


def fewer(scores: list[TokenScores], samples: int) -> list[TokenScores]:
    """Return the answers with only the first samples."""
    return [
        TokenScores(
            each.logprobs,
            answers=tuple(CutAnswers(cut.continuation, cut.samples[:samples]) for cut in each.answers or ()),
        )
        for each in scores
    ]


Row = tuple[Access, str, int | None, tuple[float, float, float]]


def rows(
    texts: AttackTexts, member: dict[str, bool], models: tuple[LanguageModel, LanguageModel], sampling: SamplingConfig
) -> Iterator[Row]:
    """Yield level, attack, samples, and AUROC with its interval."""
    with closing(ScoreCache(cache_directory() / "scores")) as cache:
        names = DEFAULT_BY_LEVEL[Access.LOG_PROBABILITIES]
        scored = score_attacks([get_attack(name) for name in names], texts, *models, cache)
    for name in names:
        yield Access.LOG_PROBABILITIES, name, None, auroc(scored, member, name)
    with closing(AnswerStore(cache_directory() / "answers")) as store:
        answering = Answering(sampling, store)
        (name,) = DEFAULT_BY_LEVEL[Access.TOP_K]
        scored = score_by_answers([get_attack(name)], texts, *models, answering)
        yield Access.TOP_K, name, None, auroc(scored, member, name)
        cut = cut_texts(texts, Access.TEXT, sampling)
        under = [answers_of(cut, model, Access.TEXT, answering) for model in models]
    owners, counted = [user for user, _, _ in cut], [text for _, text, _ in cut]
    for samples in SAMPLES:
        if samples <= sampling.samples:
            some = [fewer(scores, samples) for scores in under]
            for name in DEFAULT_BY_LEVEL[Access.TEXT]:
                scored = get_attack(name).statistics(owners, counted, *some)
                yield Access.TEXT, name, samples, auroc(scored, member, name)


def cost(lm: LanguageModel, folder: Path, *, prefixes: int = 32, samples: int = 16, tokens: int = 32) -> float:
    """Return the time of sampling, divided by transformers' time for as many tokens in single batches."""
    texts = [Prefix(f"The river opens the letter on day {i}. " * 3) for i in range(prefixes)]
    asked = AnswerRequest(samples, tokens, 1.0, 1, 0)
    ids = lm.tokenizer([text.text for text in texts], add_special_tokens=False, padding=False)["input_ids"]
    longest = max(map(len, ids))
    rows_of = torch.full((prefixes, longest + 1), lm.start_token)
    mask = torch.zeros_like(rows_of)
    for row, own in enumerate(ids):
        rows_of[row, longest - len(own) + 1 :] = torch.tensor(own)
        mask[row, longest - len(own) :] = 1
    ratios = []
    for turn in range(3):
        begun = time.perf_counter()
        with closing(AnswerStore(folder / str(turn))) as store:
            sampled(lm, texts, asked, store)
        ours = time.perf_counter() - begun
        begun = time.perf_counter()
        with torch.inference_mode():
            lm.model.generate(
                rows_of.repeat_interleave(samples, 0),
                attention_mask=mask.repeat_interleave(samples, 0),
                do_sample=True,
                top_k=0,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                pad_token_id=lm.start_token,
            )
        plain = time.perf_counter() - begun
        ratios.append(ours / plain)
        print(f"{prefixes * samples * tokens:,} tokens: {ours:.2f} s, plain generation {plain:.2f} s")
    return float(np.median(ratios))


def draw(found: Sequence[Row], path: Path) -> None:
    """Draw AUROC over samples, one line per attack. Horizontal lines show stronger attackers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for name in DEFAULT_BY_LEVEL[Access.TEXT]:
        points = [(samples, *values) for level, each, samples, values in found if each == name]
        x, value, lower, upper = np.array(points).T
        axes.errorbar(x, value, [value - lower, upper - value], label=name, capsize=2, marker="o", markersize=3)
    for level, style in ((Access.LOG_PROBABILITIES, "--"), (Access.TOP_K, ":")):
        best = max(values[0] for each, _, _, values in found if each is level)
        axes.axhline(best, linestyle=style, color="black", linewidth=1, label=f"best attack at {level}")
    axes.axhline(0.5, color="grey", linewidth=0.6)
    axes.set_xscale("log", base=2)
    axes.set_xticks(SAMPLES, [str(samples) for samples in SAMPLES])
    axes.set_xlabel("continuations of each cut")
    axes.set_ylabel("AUROC over users, 95 % interval")
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(path)


def main() -> None:
    """Print the table, or the cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--held-in", type=Path)
    parser.add_argument("--held-out", type=Path)
    parser.add_argument("--user", default="author")
    parser.add_argument("--text", default="body")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--cost", type=Path, help="folder for the answers of the cost benchmark")
    options = parser.parse_args()
    models = load_language_model(options.model), load_language_model(options.reference)
    if options.cost is not None:
        print(f"ratio {cost(models[0], options.cost):.2f}")
        return
    sides = {True: options.held_in, False: options.held_out}
    by_side = {side: read(path, options.user, options.text, f"{side}") for side, path in sides.items()}
    member = {user: side for side, users in by_side.items() for user in users}
    texts = AttackTexts.of({**by_side[True], **by_side[False]})
    found = list(rows(texts, member, models, SamplingConfig()))
    for level, name, samples, (value, lower, upper) in found:
        print(f"| {level} | {name} | {samples or ''} | {value:.3f} ({lower:.3f} to {upper:.3f}) |")
    if options.figure is not None:
        draw(found, options.figure)


if __name__ == "__main__":
    main()
