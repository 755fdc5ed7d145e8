"""How many users does a guarantee need? Short messages of made-up people, two models, and a sweep for each rung.

heldin's made-up mails are too long for two cores. A message is the end of a mail, with the last words and the
signature, which identify a person best. The base model was trained on messages of a few public people, so it knows the
language but has not learned everything. The attacker's reference was trained on messages of four times as many people.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from heldin.audit.blocks import Summary, over_blocks
from heldin.audit.users_ladder import PLAIN, Trained, kept
from heldin.base.files import whole_file, write_text
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.corpus.document import Document
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate
from heldin.defenses.plan_file import read_plan
from heldin.finetune.batches import encode
from heldin.finetune.pretraining import train_once
from heldin.finetune.recipe import Recipe, Select
from heldin.models.devices import default_device
from heldin.models.loading import LanguageModel
from heldin.models.model_config import TinyModel
from heldin.models.opening import load_language_model
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.sweeps.cell_plan import kept_hash, placed_cells
from heldin.sweeps.finished import Finished, finished_cells
from heldin.sweeps.load import load_sweep
from heldin.sweeps.sweep_config import Sweep

RUNGS = (1000, 4000, 16000, 64000)
AUDITED = 700  # people whose membership a coin decides: half of them are in no training
SWEEPS = Path(__file__).parent.parent / "configs" / "sweeps"
SEED, PUBLIC_SEED = 21, 977
CHARACTERS = 50  # of a message at most
RECORDS = 12  # of a person: 2 for training, 8 for the attacker, 2 to measure the loss
SHAPE = TinyModel(vocabulary=1024, context=24, hidden=48, layers=2, heads=4, window=24)
RECIPE = Recipe(
    epochs=2, batch_size=32, learning_rate=3e-3, warmup_steps=20, sequence_length=20, evaluations=1, select=Select.LAST
)


def message(mail: str) -> str:
    """Return the end of a mail, starting at the beginning of a word."""
    if len(mail) <= CHARACTERS:
        return mail
    end = mail[-CHARACTERS - 1 :]
    return end.strip() if end[0].isspace() else end.split(maxsplit=1)[-1]


def messages(people: int, seed: int) -> Iterator[dict[str, str]]:
    """Yield the messages of made-up people, person by person. The first people do not depend on ``people``."""
    corpus = SyntheticCorpus(people, mean_records=RECORDS, min_records=RECORDS, distinctiveness=1.0, seed=seed)
    for mail in generate(corpus):
        yield {"user": mail.user, "id": mail.id, "text": message(mail.text)}


def write_messages(to: Path, people: int, seed: int, advance: Callable[[int], object] = lambda _: None) -> None:
    """Write the messages as JSON lines.

    Args:
        to: file to write.
        people: number of people.
        seed: seed of the people.
        advance: called with the number of written messages.
    """
    with whole_file(to) as part, part.open("w", encoding="utf-8") as lines:
        for number, row in enumerate(messages(people, seed), start=1):
            lines.write(json.dumps(row) + "\n")
            advance(number)


def people_of(rung: int) -> int:
    """Return the number of people in a rung's corpus. Training then has the rung's number of people on average."""
    return rung + AUDITED // 2


def write_rungs(folder: Path, rungs: Sequence[int] = RUNGS, advance: Callable[[int], object] = lambda _: None) -> None:
    """Write the messages of each rung, unless they exist. The people of a rung are the first people of the largest
    rung."""
    largest = people_file(folder, max(rungs))
    if not largest.is_file():
        write_messages(largest, people_of(max(rungs)), SEED, advance)
    for rung in rungs:
        if not people_file(folder, rung).is_file():
            with (
                largest.open(encoding="utf-8") as lines,
                whole_file(people_file(folder, rung)) as part,
                part.open("w", encoding="utf-8") as own,
            ):
                own.writelines(islice(lines, people_of(rung) * RECORDS))


def people_file(folder: Path, rung: int) -> Path:
    """Return the path of a rung's messages."""
    return folder / f"people-{rung}.jsonl"


def write_models(folder: Path, base: int = 300, reference: int = 1200, shape: TinyModel = SHAPE) -> None:
    """Train the base model and the attacker's reference on public people, unless the models exist.

    Args:
        folder: folder for both models, ``base`` and ``reference``.
        base: number of people for the base model.
        reference: number of further people for the reference, whose training starts from the base model.
        shape: shape of the models.
    """
    texts = [row["text"] for row in messages(base + reference, PUBLIC_SEED)]
    own = texts[: base * RECORDS]
    tokenizer = train_tokenizer(own, shape.vocabulary)
    model = new_tiny_model(shape, tokenizer, RECIPE.seed).to(default_device())
    _train(LanguageModel(model, tokenizer, "a tiny GPT-Neo", ""), own, RECIPE, folder / "base")
    start = load_language_model(str(folder / "base"))
    _train(start, texts[base * RECORDS :], replace(RECIPE, epochs=3, batch_size=64), folder / "reference")


def _train(fresh: LanguageModel, texts: Sequence[str], recipe: Recipe, to: Path) -> None:
    documents = [Document.of(text) for text in texts]
    train_once(fresh, encode(fresh.tokenizer, documents, recipe.sequence_length), recipe, to)


def rung_sweep(folder: Path, rung: int, name: str = "users", overrides: Sequence[str] = ()) -> Sweep:
    """Return the sweep of a rung.

    Args:
        folder: of messages and models.
        rung: number of people in training on average, and the population that the accountant is told.
        name: of the sweep's file: ``users``, plain training and ULS; ``users-banded``; ``users-momentum``, both with
            momentum; or ``users-ways`` (``replication.users_ways``).
        overrides: further changes of the sweep's file.

    Raises:
        InputError: the overrides have errors.
    """
    of_base = [
        f"corpus.source.path={people_file(folder.resolve(), rung)}",
        f"model.base={folder.resolve() / 'base'}",
        f"attack.reference={folder.resolve() / 'reference'}",
        f"split.audit_fraction={min(1.0, AUDITED / people_of(rung)):.6f}",
        f"defense.population={rung}",
    ]
    # The tuned rates of a rung are a scale of the sweep's file; other rungs have those of the file.
    scale = str(rung) if name == "users-momentum" and rung in RUNGS else None
    return load_sweep(SWEEPS / f"{name}.yaml", [f"name={name}-{rung}", *overrides], scale, of_base)


def trained(sweep: Sweep, folder: Path, reporter: Reporter) -> list[Trained]:
    """Return the results of each variant in a finished sweep of a rung.

    Args:
        sweep: sweep of the rung.
        folder: folder of the sweep.
        reporter: shows the progress of reading.
    """
    return [_trained(cells) for cells in whole_variants(sweep, folder, reporter)]


def whole_variants(sweep: Sweep, folder: Path, reporter: Reporter) -> list[list[Finished]]:
    """Return the cells of each variant that is finished in every block. Arguments as of ``trained``."""
    finished, _ = finished_cells(placed_cells(sweep, folder), kept_hash(folder), reporter)
    by_variant: dict[str, list[Finished]] = defaultdict(list)
    for cell in finished.values():
        by_variant[cell.cell.variant.name].append(cell)
    return [cells for cells in by_variant.values() if len(cells) == sweep.config.blocks]


def _trained(cells: Sequence[Finished]) -> Trained:
    plan, training = read_plan(cells[0].cell.folder / "plan.json"), cells[0].record.training
    assert training is not None
    assert training.fit is not None
    return Trained(
        users=training.fit.population,
        training=cells[0].cell.variant.name.split("-")[0],
        optimizer=_optimizer(cells[0].cell.variant.config.finetune),
        epsilon=None if training.epsilon is None else round(training.epsilon, 2),
        noise_multiplier=round(training.noise_multiplier or 0.0, 4),
        bands=plan.sampler.groups,
        gains=tuple(round(gain(cell), 4) for cell in cells),
        aurocs=tuple(round(cell.auroc, 4) for cell in cells),
    )


def _optimizer(recipe: Recipe) -> str:
    return "momentum" if recipe.momentum else recipe.optimizer.value.replace("adam", "Adam")


def gain(cell: Finished) -> float:
    """Return the loss of the base model minus that of the trained one on non-members' test texts, nats a token."""
    return sum(user.base_loss - user.loss for user in cell.losses.values()) / len(cell.losses)


def in_order(ladder: Sequence[Trained]) -> list[Trained]:
    """Return the ladder sorted by number of users, then plain training first, then by epsilon."""
    return sorted(
        ladder,
        key=lambda row: (row.users, row.training != PLAIN, row.epsilon or 0.0, row.optimizer, row.training == "banded"),
    )


def write_ladder(ladder: Sequence[Trained], to: Path) -> None:
    """Write the ladder as YAML, with a line for each kind of training at each rung."""
    rows = [f"- {json.dumps(row.model_dump(mode='json'))}\n" for row in ladder]
    write_text(to, "# Written by python -m replication users. docs/users.md prints it.\n" + "".join(rows))


def shares_table(ladder: Sequence[Trained]) -> str:
    """Return the shares of the plain gain as a table in Markdown: epsilons and rungs by defense and optimizer."""
    rows = kept(ladder)
    ways = list(dict.fromkeys((row.trained.training, row.trained.optimizer) for row in rows))
    share = {(r.trained.epsilon, r.trained.users, r.trained.training, r.trained.optimizer): r.share for r in rows}
    heads = [f"{'ULS' if training == 'uls' else 'banded'}, {optimizer}" for training, optimizer in ways]
    lines = ["| " + " | ".join(("epsilon", "users", *heads)) + " |", "|---" * (2 + len(ways)) + "|"]
    for epsilon, users in sorted({key[:2] for key in share}, key=lambda key: (-(key[0] or 0.0), key[1])):
        kept_by = [share.get((epsilon, users, *way)) for way in ways]
        cells = ["" if its is None else interval(its, 100, " %") for its in kept_by]
        lines.append("| " + " | ".join((f"{epsilon:g}", f"{users:,}", *cells)) + " |")
    return "\n".join(lines)


def ladder_table(ladder: Sequence[Trained]) -> str:
    """Return the ladder as a Markdown table with means over the blocks and 95 % intervals."""
    shares = {id(row.trained): row.share for row in kept(ladder)}
    lines = [
        "| users | training | noise multiplier | gain, nats a token | share of the plain gain | AUROC on fresh texts |",
        "|---|---|---|---|---|---|",
    ]
    for row in ladder:
        share = shares.get(id(row))
        cells = (
            f"{row.users:,}",
            _kind(row),
            f"{row.noise_multiplier:.3g}",
            interval(over_blocks(row.gains)),
            "" if share is None else interval(share, 100, " %"),
            interval(over_blocks(row.aurocs)),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _kind(row: Trained) -> str:
    if row.training == PLAIN:
        return PLAIN
    named = "ULS" if row.training == "uls" else f"banded, {counted(row.bands, 'band')}"
    return f"{named}, {row.optimizer}, epsilon {row.epsilon:g}"


def interval(summary: Summary, times: float = 1.0, unit: str = "") -> str:
    """Return mean and 95 % limits, multiplied by ``times``."""
    digits = 0 if unit else 3
    value, *limits = (
        f"{times * each:.{digits}f}" for each in (summary.value, summary.lower, summary.upper) if each is not None
    )
    return f"{value}{unit}" + (f" ({limits[0]} to {limits[1]})" if limits else "")
