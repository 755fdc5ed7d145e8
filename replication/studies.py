"""The commands for simulations and studies of the papers."""

import itertools
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from heldin.commands.options import AsCsv, AsJson, DeviceOption, Quiet, answer, json_text

StudyFolder = Annotated[Path, typer.Option("--out", help="Folder for the figure and the numbers.")]

app = typer.Typer()


@app.command("mean-estimation")
def mean_estimation(
    to: StudyFolder = Path("runs/mean-estimation"),
    repeats: Annotated[
        int, typer.Option(min=2, help="Number of simulations per setting, not counting those for tuning.")
    ] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Seed for data, coins and noise.")] = 0,
    json: AsJson = False,
) -> None:
    """Compare ELS and ULS on a problem with a known answer (Charles et al., section 4): three sweeps, with verdicts."""
    from heldin.base.files import private_directory
    from heldin.base.progress import reporter_for_this_terminal
    from replication import mean_estimation_sweeps as study
    from replication.study_figures import mean_estimation_figure

    private_directory(to)  # before the work
    settings = len(study.settings_of(study.Sweeps()))
    with reporter_for_this_terminal().track("mean estimation", settings, "settings") as advance:
        found = study.run_study(repeats, seed, advance=advance)
    _study(to, "mean-estimation", found.as_dict(), study.table(found), mean_estimation_figure(found), json)


@app.command("effective-noise")
def effective_noise(to: StudyFolder = Path("runs/effective-noise"), json: AsJson = False) -> None:
    """Find when Asi & Liu's filter adds less noise than user-wise DP-SGD (Chua et al., Figures 3 and 7)."""
    from heldin.base.files import private_directory
    from heldin.base.progress import reporter_for_this_terminal
    from replication import effective_noise as noise
    from replication.study_figures import effective_noise_figure

    private_directory(to)  # before the work
    with reporter_for_this_terminal().track("effective noise", len(noise.settings_of()), "settings") as advance:
        rows = noise.effective_noise(advance=advance)
    _study(to, "effective-noise", noise.as_dict(rows), noise.table(rows), effective_noise_figure(rows), json)


@app.command("concentration")
def concentration(
    config: Annotated[Path, typer.Argument(help="YAML config of a run. The command measures the run's public users.")],
    to: StudyFolder = Path("runs/concentration"),
    group_size: Annotated[list[int] | None, typer.Option(min=1, help="Number of records per user. Repeatable.")] = None,
    users: Annotated[int, typer.Option(min=10, help="Maximum number of public users.")] = 128,
    model: Annotated[str | None, typer.Option(help="Model for the gradients (default: the base model).")] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="Clip norm C (default: the median norm of users' gradients).")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override of a config key, in YAML. Repeatable.")
    ] = None,
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
) -> None:
    """Measure how far apart users' gradients are: the tau / C of Asi & Liu's filter (Chua et al., section 5.3)."""
    from heldin.base.errors import InputError
    from heldin.base.files import private_directory, write_text
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.stages.run_config import load_config
    from replication import concentration as study

    if clip_norm is not None and not clip_norm > 0.0:
        raise InputError(f"--clip-norm {clip_norm:g}: give a number above 0")
    private_directory(to)  # before the work
    who, rows = study.measure(
        load_config(config, set_ or []),
        reporter_for_this_terminal(),
        group_sizes=tuple(group_size or (1, 4, 16)),
        most_users=users,
        model=model,
        clip_norm=clip_norm,
    )
    where, fields = to / "concentration.json", study.as_dict(who, rows)
    write_text(where, json_text(fields) + "\n")
    typer.echo(json_text(fields) if json else f"{study.table(who, rows)}\nnumbers: {where}")


@app.command("noise")
def noise(to: StudyFolder = Path("runs/noise"), json: AsJson = False) -> None:
    """Compare the noise of ELS and ULS, and black-box accounting with exact accounting (Charles et al., Figures 1, 2,
    9)."""
    from heldin.base.files import private_directory
    from heldin.base.progress import reporter_for_this_terminal
    from replication import noise as study

    private_directory(to)  # before the work
    with reporter_for_this_terminal().track("noise", study.settings(), "settings") as advance:
        found = study.run_study(advance)
    _study(to, "noise", found.as_dict(), study.table(found), study.noise_figure(found), json)


@app.command("proposition")
def proposition(
    to: StudyFolder = Path("runs/proposition"),
    draws: Annotated[
        int, typer.Option(min=2, help="Number of sequences to sample, if there are too many to list.")
    ] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed for the Markov sources and the sampled sequences.")] = 0,
    json: AsJson = False,
) -> None:
    """Compare the attack statistic with its bounds (Kandpal et al., Propositions 1 and 2) on known Markov sources."""
    from heldin.base.files import private_directory
    from heldin.base.progress import reporter_for_this_terminal
    from replication import proposition_sweeps as study
    from replication.proposition_figure import proposition_figure

    private_directory(to)  # before the work
    with reporter_for_this_terminal().track("proposition", study.pairs_of(study.SIZES), "pairs") as advance:
        found = study.run_study(draws, seed, advance=advance)
    _study(to, "proposition", found.as_dict(), study.table(found), proposition_figure(found), json)


@app.command("text-classification")
def text_classification(
    config: Annotated[Path, typer.Argument(help="YAML config of the study, such as replication/configs/ag-news.yaml.")],
    to: Annotated[
        Path | None,
        typer.Option("--out", help="New folder for the results (default: runs/NAME, with the study's name)."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override of a config key, such as users=200. Repeatable.")
    ] = None,
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
) -> None:
    """Train a text classifier with several mechanisms, and count test errors (Lai et al., Figure 3).

    The command assigns texts without users to pseudo-users. An encoder is pre-trained on the texts of public
    pseudo-users. The folder for the results must be new.
    """
    from heldin.base.files import write_text
    from heldin.base.progress import reporter_for_this_terminal
    from replication.classification.config import load_classification
    from replication.classification.job import compare_classifiers, table

    study = load_classification(config, set_ or [])
    folder = to or Path("runs") / study.name
    where = folder / "text-classification.json"
    found = compare_classifiers(
        study,
        folder,
        reporter_for_this_terminal(),
        # After each mechanism: a later one that fails takes no result with it.
        keep=lambda so_far: write_text(where, json_text(so_far.as_dict())),
    )
    typer.echo(json_text(found.as_dict()) if json else f"{table(found)}\nnumbers: {where}")


@app.command("personalization")
def personalization(
    sweep: Annotated[Path, typer.Argument(help="Folder of a finished sweep, with models and ledgers.")],
    to: Annotated[Path, typer.Option("--out", help="Folder for the numbers.")] = Path("runs/personalization"),
    users: Annotated[int, typer.Option(min=10, help="Maximum number of non-members per run.")] = 200,
    epochs: Annotated[int, typer.Option(min=1, help="Number of passes over one half of a user's records.")] = 4,
    learning_rate: Annotated[
        list[float] | None,
        typer.Option(
            help=(
                "Learning rate of SGD to try. Repeatable (default: five rates). The command uses the rate with"
                " the lowest loss on public users."
            )
        ),
    ] = None,
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
) -> None:
    """Train each model of a sweep further on each non-member's own records (Charles et al., Appendix G.2).

    Training uses half of the user's records. The command measures the loss on the other half, before and after the
    training, for every defense. The command then discards the models.
    """
    from heldin.base.errors import InputError
    from heldin.base.files import private_directory, write_text
    from heldin.base.progress import reporter_for_this_terminal
    from replication.personalization.job import LEARNING_RATES, Options, personalize, table

    rates = tuple(learning_rate or LEARNING_RATES)
    if min(rates) <= 0:
        raise InputError(f"--learning-rate {min(rates):g}: give a number above 0")
    options = Options(users=users, epochs=epochs, learning_rates=rates)
    where = to / "personalization.json"
    private_directory(to)  # before the work
    found = personalize(sweep, options, reporter_for_this_terminal())
    write_text(where, json_text(found.as_dict()) + "\n")
    typer.echo(json_text(found.as_dict()) if json else f"{table(found)}\nnumbers: {where}")


@app.command("grid")
def grid(
    sweep: Annotated[Path, typer.Argument(help="Folder of a sweep with finished runs.")],
    over: Annotated[
        str,
        typer.Option(
            help="Key for the columns, such as defense.cohort, or gradients for the number of gradients per step."
        ),
    ],
    by: Annotated[
        str,
        typer.Option(
            help=(
                "Key for the rows, such as defense.group_size. If its values are words, the figure has one line"
                " for each word."
            )
        ),
    ],
    each: Annotated[str | None, typer.Option(help="Key for the panels. Each value gets one panel.")] = None,
    of: Annotated[str, typer.Option(help="Quantity to show: loss, perplexity, gain, auroc or seconds.")] = "loss",
    to: StudyFolder = Path("runs/grid"),
    json: AsJson = False,
) -> None:
    """Draw a finished sweep over two keys, as a heat map or as lines (Charles et al., Figures 4 to 8, 13, 16, 17)."""
    from typing import cast

    from replication import grid as view

    found = view.grid_of(sweep, cast(view.Measure, of), over, by, each)
    _study(to, "grid", found.as_dict(), view.table(found), view.grid_figure(found), json)


@app.command("strategies")
def strategies(
    sweep: Annotated[Path, typer.Argument(help="Folder of a finished sweep over defense.cohort and group_size.")],
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
) -> None:
    """Compare rules that choose cohort and group size for a budget, on a finished grid (Charles et al., Figure 14)."""
    from heldin.base.progress import reporter_for_this_terminal
    from replication import strategies as study

    found = study.of_sweep(sweep, reporter_for_this_terminal())
    typer.echo(json_text(study.as_dict(found)) if json else study.table(found))


@app.command("selected-records")
def selected_records(
    config: Annotated[Path, typer.Argument(help="Config of a run, such as replication/sweeps/base/chua-enron.yaml.")],
    records: Annotated[int, typer.Option(min=1, help="Number of records per user.")] = 10,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override of a config key, in YAML. Repeatable.")
    ] = None,
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
) -> None:
    """Describe the records that each rule selects: length, perplexity, and how many are not cut (Chua et al., Table
    7)."""
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.stages.run_config import load_config
    from replication import selected_records as study

    found = study.of_config(load_config(config, set_ or []), records, reporter_for_this_terminal())
    typer.echo(json_text(study.as_dict(found)) if json else study.table(found))


@app.command("private-median")
def private_median(
    config: Annotated[Path, typer.Argument(help="Config of a run. The command counts the records per user.")],
    to: Annotated[Path, typer.Option("--out", help="New file for the release.")],
    epsilon: Annotated[float, typer.Option(help="Epsilon that this release costs each user.")] = 0.1,
    at_most: Annotated[int, typer.Option(min=1, help="Largest value that may be released.")] = 256,
    plan: Annotated[
        Path | None, typer.Option(help="The plan.json of a training run, to compute the joint epsilon.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override of a config key, in YAML. Repeatable.")
    ] = None,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Release the median number of records per user with differential privacy (Charles et al., section 6).

    Every call spends epsilon again. For this reason, the command never overwrites the file of an earlier release.
    """
    from heldin.base.errors import InputError
    from heldin.base.files import write_text
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.stages.run_config import load_config
    from replication import private_median as study

    if to.exists():
        raise InputError(
            f"'{to}' exists, and another release would spend epsilon again: use this release, or give another file"
        )
    both = study.together(plan, epsilon) if plan else None  # before anything is spent
    release = study.of_config(load_config(config, set_ or []), epsilon, at_most, reporter_for_this_terminal())
    fields = study.as_dict(release, both)
    write_text(to, json_text(fields) + "\n")
    typer.echo(json_text(fields) if json else f"{study.table(release, both)}\nrelease: {to}")


@app.command("split-by-date")
def split_by_date(
    config: Annotated[Path, typer.Argument(help="Config of a run whose corpus has dates.")],
    date: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"], help="First day of the later part of the corpus.")],
    to: Annotated[Path, typer.Option("--out", help="Folder for before.jsonl.gz and after.jsonl.gz.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override of a config key, in YAML. Repeatable.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Split a corpus by date, to train on the first part and test on the second (Charles et al., Appendix D)."""
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.stages.run_config import load_config
    from replication import by_date as study

    counts = study.split_by_date(load_config(config, set_ or []), date.date(), to, reporter_for_this_terminal())
    typer.echo("\n".join(f"{to / name}.jsonl.gz: {count:,} records" for name, count in counts.items()))


@app.command("pretraining-without")
def pretraining_without(
    config: Annotated[Path, typer.Argument(help="Config of a run with model.pretrain.source, the corpus to clean.")],
    to: Annotated[
        Path, typer.Option("--out", help="New file FILE.jsonl. The command also writes the counts to FILE.json.")
    ],
    threshold: Annotated[
        float, typer.Option(help="Minimum n-gram similarity at which two texts count as near-duplicates.")
    ] = 0.8,
    ngram: Annotated[int, typer.Option(min=1, help="Number of words per n-gram.")] = 5,
    url: Annotated[str | None, typer.Option(help="Column of the pre-training corpus with URLs.")] = None,
    fine_tuning_url: Annotated[
        str | None, typer.Option(help="Column of the fine-tuning corpus with the URLs of texts to remove.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Remove texts from this host and its subdomains. Repeatable.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override of a config key, in YAML. Repeatable.")
    ] = None,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Remove near-duplicates and URLs of the fine-tuning data from a pre-training corpus (Charles et al., Table 2).

    The cleaned corpus depends on the fine-tuning texts. A private run has no DP guarantee if its base model was
    trained on the cleaned corpus.
    """
    from heldin.base.errors import InputError
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.stages.run_config import load_config
    from replication import pretraining_without as study

    if not 0.0 < threshold <= 1.0:
        raise InputError(f"--threshold {threshold:g}: give a number above 0 and at most 1")
    rule = study.Rule(threshold, ngram, url, fine_tuning_url, tuple(host or ()))
    found = study.write_without(load_config(config, set_ or []), rule, to, reporter_for_this_terminal())
    typer.echo(json_text(study.as_dict(found)) if json else found.table(to))


@app.command("chats")
def chats(
    plays: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Path of engdracor_plays.jsonl.gz.")
    ] = None,
    mails: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Path of enron_by_sender.jsonl.gz.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--out", help="File for the chats (default: a file in runs/).")] = None,
) -> None:
    """Make chats from plays or mails. The words of each user appear only in records of the same user."""
    from heldin.base.errors import InputError
    from replication.chats import chats_of_mails, chats_of_plays, write_chats

    if (plays is None) == (mails is None):
        raise InputError("give exactly one of --plays and --mails")
    source, made = (mails, chats_of_mails) if plays is None else (plays, chats_of_plays)
    assert source is not None
    to = to or Path("runs") / f"{'mails' if plays is None else 'plays'}-chats.jsonl"
    to.parent.mkdir(parents=True, exist_ok=True)
    users, written = write_chats(source, to, made)
    typer.echo(f"{to}: {users:,} users, {written:,} chats")


@app.command("chat-base")
def chat_base(
    to: Annotated[Path, typer.Option("--out", help="New folder for the model.")] = Path("runs/chat-base"),
    quiet: Quiet = False,
    device: DeviceOption = None,
) -> None:
    """Train a small Llama-shaped chat model on made-up public conversations. Runs with adapters use it as base
    model."""
    from heldin.base.progress import reporter_for_this_terminal
    from replication.chat_base import steps_of, write_chat_base

    to.parent.mkdir(parents=True, exist_ok=True)
    with reporter_for_this_terminal().track("chat model", steps_of(), "steps") as advance:
        write_chat_base(to, advance=advance)
    typer.echo(f"{to}: set model.base to this folder")


@app.command("users")
def users(
    folder: Annotated[Path, typer.Option("--out", help="Folder for messages, models and sweeps.")] = Path("runs/users"),
    rung: Annotated[
        list[int] | None, typer.Option(help="Number of users. Repeatable (default: 1,000, 4,000, 16,000 and 64,000).")
    ] = None,
    banded: Annotated[bool, typer.Option("--banded", help="Also train with banded noise and Adam.")] = False,
    momentum: Annotated[
        bool, typer.Option("--momentum", help="Also train ULS and banded noise with momentum SGD.")
    ] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override of a config key, in YAML. Repeatable.")
    ] = None,
    quiet: Quiet = False,
    device: DeviceOption = None,
) -> None:
    """Measure the cost of user-level privacy for several numbers of users (docs/users.md).

    Each number of users has its own sweep. If the command is killed, run the same command again to resume the sweep.
    """
    from heldin.base.files import write_text
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.commands.finish import interruptible
    from heldin.sweeps.driver import run_sweep
    from replication.study_figures import users_figure
    from replication.users import (
        RUNGS,
        in_order,
        ladder_table,
        rung_sweep,
        shares_table,
        trained,
        write_ladder,
        write_models,
        write_rungs,
    )

    reporter, rungs, ladder = reporter_for_this_terminal(), rung or RUNGS, []
    write_models(folder)
    write_rungs(folder, rungs)
    with interruptible():
        names = ["users", *["users-banded"] * banded, *["users-momentum"] * momentum]
        for number, name in itertools.product(rungs, names):
            sweep = rung_sweep(folder, number, name, set_ or ())
            out = folder / sweep.config.name
            run_sweep(sweep, out, reporter, command=f"python -m replication users --rung {number}")
            ladder += trained(sweep, out, reporter)
    ladder = in_order(ladder)
    write_ladder(ladder, folder / "ladder.yaml")
    write_text(folder / "users.svg", users_figure(ladder))
    typer.echo(f"{shares_table(ladder)}\n\n{ladder_table(ladder)}")
    typer.echo(f"figure: {folder / 'users.svg'}, numbers: {folder / 'ladder.yaml'}")


@app.command("users-ways")
def users_ways(
    folder: Annotated[Path, typer.Option("--out", help="Folder for messages, models and the sweep.")] = Path(
        "runs/users"
    ),
    rung: Annotated[int, typer.Option(help="Number of users.")] = 16_000,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override of a config key, in YAML. Repeatable.")
    ] = None,
    quiet: Quiet = False,
    device: DeviceOption = None,
) -> None:
    """Compare ways to spend one budget: optimizer, noise, and trained layers (docs/users.md).

    The command runs one sweep. If the command is killed, run the same command again to resume the sweep.
    """
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.commands.finish import interruptible
    from heldin.sweeps.driver import run_sweep
    from replication import users_ways as study
    from replication.users import write_models, write_rungs

    reporter = reporter_for_this_terminal()
    write_models(folder)
    write_rungs(folder, [rung])
    study.write_public(folder)
    sweep = study.ways_sweep(folder, rung, set_ or ())
    out = folder / sweep.config.name
    with interruptible():
        run_sweep(sweep, out, reporter, command=f"python -m replication users-ways --rung {rung}")
    found = study.ways_of(sweep, out, reporter)
    study.write_ways(found, folder / "ways.yaml")
    typer.echo(f"{study.ways_table(found)}\nnumbers: {folder / 'ways.yaml'}")


@app.command("later-loss")
def later_loss(
    file: Annotated[Path, typer.Argument(help="File after.jsonl.gz from split-by-date.")],
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, with models.")],
    users: Annotated[int, typer.Option(min=1, help="Maximum number of users from the later part.")] = 1000,
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
) -> None:
    """Measure the loss of finished models on texts after a date (Charles et al., Appendix D)."""
    from heldin.base.progress import reporter_for_this_terminal
    from replication import by_date as study

    found = list(study.losses_after(runs, file, users, reporter_for_this_terminal()))
    typer.echo(json_text(study.as_dict(found)) if json else study.table(found))


@app.command("user-entity-claims")
def user_entity_claims(json: AsJson = False, csv: AsCsv = False) -> None:
    """Recompute the fifteen epsilons of user-entity DP that Lai et al. print, and compute the epsilons that hold."""
    from replication.published_claims import published_claims, published_table

    claims = published_claims()
    answer(published_table(claims), claims.rows(), claims.rows(), json=json, csv=csv)


@app.command("user-entity-curves")
def user_entity_curves(
    to: StudyFolder = Path("runs/user-entity-curves"),
    categories: Annotated[
        bool, typer.Option("--categories", help="Draw a curve for each category of entities (Figure 9 of the paper).")
    ] = False,
    json: AsJson = False,
) -> None:
    """Draw epsilon over steps as Lai et al. claim it, and the epsilon that holds (their Figures 4 and 9)."""
    from dataclasses import asdict

    from heldin.base.files import private_directory
    from heldin.base.progress import reporter_for_this_terminal
    from replication import published_claims as claims
    from replication.study_figures import claim_figure

    private_directory(to)  # before the work
    with reporter_for_this_terminal().track("claims", 3, "data sets") as advance:
        curves = claims.claim_curves(categories=categories, advance=advance)
    fields = {"curves": [asdict(curve) for curve in curves]}
    _study(to, "user-entity-curves", fields, claims.curve_table(curves), claim_figure(curves), json)


@app.command("pseudo-users")
def pseudo_users(
    file: Annotated[Path, typer.Argument(help="File of texts without users: JSON lines, plain or compressed.")],
    to: Annotated[Path, typer.Option("--out", help="File for the texts with pseudo-users.")] = Path(
        "runs/ag-users.jsonl"
    ),
    text: Annotated[str, typer.Option(help="Column that contains the text.")] = "text",
    mean: Annotated[float, typer.Option(min=1, help="Mean number of texts per pseudo-user.")] = 15.0,
    spread: Annotated[
        float, typer.Option(min=0, help="Standard deviation of the number of texts per pseudo-user.")
    ] = 2.0,
    lower: Annotated[bool, typer.Option("--lower", help="Write texts in lower case and without punctuation.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Public seed for assigning texts to pseudo-users.")] = 0,
) -> None:
    """Assign texts to pseudo-users by a normal distribution, to train language models (Lai et al., Appendix C).

    A text that occurs several times is assigned only once. heldin run can read the new file as a corpus.
    """
    from replication.pseudo_users import deal_file

    users, texts = deal_file(file, to, text=text, mean=mean, spread=spread, lower=lower, seed=seed)
    typer.echo(f"{texts:,} texts of {users:,} pseudo-users: {to}")


def _study(folder: Path, name: str, fields: dict[str, Any], table: str, figure: str, as_json: bool) -> None:
    from heldin.base.files import write_text

    for ending, text in (("json", json_text(fields)), ("svg", figure)):
        write_text(folder / f"{name}.{ending}", text)
    typer.echo(json_text(fields) if as_json else f"{table}\nfigure: {folder / name}.svg, numbers: {folder / name}.json")
