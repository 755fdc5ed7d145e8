"""Commands that only compute: ``heldin account``, ``choose``, ``bound`` and ``power``."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer

from heldin.base.arguments import number_in, whole_number_in
from heldin.base.errors import InputError
from heldin.commands.options import (
    AsCsv,
    AsJson,
    ExcludeAuroc,
    ExcludeTpr,
    Noise,
    Quiet,
    Rate,
    Target,
    answer,
    thresholds,
)

if TYPE_CHECKING:
    from heldin.defenses.choices import DeltaRule

# Modules of the engine are imported inside the commands, here and in the files beside this one: most of them load scipy
# or torch, for which `heldin --help` need not wait.

KINDS = ("uls", "els", "group", "example", "user-entity", "uedp")
USERS, RECORDS = "For uls and uedp, which sample users", "For els, group and example, which sample records"
TEXTS = "For user-entity, which samples texts"
ALGORITHM = "For uedp, Algorithm 1 of Lai et al."
Delta = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="delta of the guarantee: a number (at least 1e-11), examples^-1.1 or units^-1.1 (default: units^-1.1)."
        " Units are the protected users or examples.",
    ),
]
_norm = partial(typer.Option, rich_help_panel="Clip norms, estimated from public users' texts")


def account(
    context: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="WORD",
            help=f"Mechanism ({', '.join(KINDS)}), compose, or the path of a plan.json.",
        ),
    ],
    plans: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="With compose: for each release, a plan.json or the folder of a run, export or sweep.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of optimizer steps T.")] = None,
    delta: Delta = None,
    noise_multiplier: Noise = None,
    target_epsilon: Target = None,
    sampling_rate: Rate = None,
    group_size: Annotated[int | None, typer.Option(help="Maximum number of records per user.")] = None,
    users: Annotated[int | None, typer.Option(help="Public number of users, N.", rich_help_panel=USERS)] = None,
    cohort: Annotated[
        float | None,
        typer.Option(help="Expected number of users per step, M; the sampling rate is M / N.", rich_help_panel=USERS),
    ] = None,
    cap: Annotated[
        int | None,
        typer.Option(help="uls: maximum number of users per step.", rich_help_panel=USERS, hidden=True),
    ] = None,
    examples: Annotated[int | None, typer.Option(help="Public number of examples, N.", rich_help_panel=RECORDS)] = None,
    batch: Annotated[
        float | None, typer.Option(help="Expected number of examples per step.", rich_help_panel=RECORDS)
    ] = None,
    exposed: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Numbers of texts by or about one person, such as 1,4,16.",
            rich_help_panel=TEXTS,
        ),
    ] = None,
    entity_cap: Annotated[
        int | None, typer.Option(help="Maximum number of texts that name an entity (k).", rich_help_panel=TEXTS)
    ] = None,
    entity_rate: Annotated[
        float | None,
        typer.Option(
            help="Probability that an entity is sampled in a step (default: 0.5).",
            rich_help_panel=ALGORITHM,
            hidden=True,
        ),
    ] = None,
    sensitive_share: Annotated[
        float | None,
        typer.Option(
            help="Share of records with a recognised entity (only for the estimator f_E+).",
            rich_help_panel=ALGORITHM,
            hidden=True,
        ),
    ] = None,
    holders: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="One or more numbers of other users who name the entity, such as 1,16,946.",
            rich_help_panel=ALGORITHM,
            hidden=True,
        ),
    ] = None,
    noise_scale: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Unit of the noise multiplier: cohort (as in line 14) or clip-norm (default: cohort).",
            rich_help_panel=ALGORITHM,
            hidden=True,
        ),
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="compose: number of releases under each plan, in the order of the plans, such as 52,4 (default: 1"
            " for each).",
            hidden=True,
        ),
    ] = None,
    pure: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="compose: pure epsilons of other releases (such as a private median), for example 0.1,0.5.",
            hidden=True,
        ),
    ] = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Compute noise, epsilon and the bound on any attacker.

    uls: user-level sampling (Charles et al., Algorithm 2), epsilon per user. els: example-level sampling, at most
    --group-size examples per user (their Theorem 1), epsilon per user. group: like els, with exactly --group-size
    examples per user (Chua et al.). example: epsilon per example, and per user only with --group-size. user-entity:
    text sampling; one epsilon for each number of texts by or about a person. uedp: the epsilon that Lai et al. claim,
    and the epsilon that the mechanism guarantees. compose: one epsilon for all releases about the same people, from
    plans that were fixed beforehand.
    """
    given = {name: value for name, value in context.params.items() if value is not None}
    for name in ("kind", "plans", "json", "csv"):
        given.pop(name, None)
    if kind == "compose":
        _print_together(plans or [], given, json, csv)
        return
    if plans:
        raise InputError(
            f"heldin account {kind} takes no plan, but '{plans[0]}' was given: use heldin account compose for several"
            " plans"
        )
    if Path(kind).suffix == ".json":
        if given:
            raise InputError(f"a plan states the whole mechanism: leave out {_option(next(iter(given)))}")
        from heldin.defenses.accounting.account import account_plan
        from heldin.defenses.plan_file import read_plan

        _print_row(account_plan(read_plan(Path(kind))), json, csv)
        return
    if kind not in KINDS:
        raise InputError(
            f"there is no mechanism '{kind}': give one of {', '.join(KINDS)}, or compose, or the plan.json of a run"
        )
    if delta is not None:
        given["delta"] = _delta(delta)
    if noise_scale not in (None, "cohort", "clip-norm"):
        raise InputError(f"--noise-scale is {noise_scale}: choose cohort or clip-norm")
    for name in ("exposed", "holders"):
        if name in given:
            given[name] = _counts(_option(name), given[name])
    engine, show = _engine(kind)
    _require_fitting(kind, given, inspect.signature(engine).parameters)
    accounted = engine(**given)
    if show is None:
        _print_row(accounted, json, csv)
    else:
        answer(show(accounted), accounted.as_dict(), accounted.rows(), json=json, csv=csv)


def _print_together(plans: list[Path], given: dict[str, Any], json: bool, csv: bool) -> None:
    """Print one guarantee for several releases about the same people."""
    other = next((name for name in given if name not in ("times", "delta", "pure")), None)
    if other is not None:
        raise InputError(f"heldin account compose takes the mechanisms from the plans: leave out {_option(other)}")
    times = _counts("--times", given["times"]) if "times" in given else None
    delta = _delta(given.get("delta"))
    if isinstance(delta, str):
        raise InputError(f"heldin account compose does not take --delta {delta}: give a number")
    from heldin.defenses.releases import together_table
    from heldin.sweeps.releases import compose

    together = compose(plans, delta, times, _numbers("--pure", given["pure"]) if "pure" in given else ())
    answer(together_table(together), together.as_dict(), together.rows(), json=json, csv=csv)


def _numbers(option: str, given: str) -> list[float]:
    try:
        return [float(part) for part in given.split(",")]
    except ValueError:
        raise InputError(f"{option} {given}: give numbers separated by commas, such as 0.1,0.5") from None


def _engine(kind: str) -> tuple[Callable[..., Any], Callable[[Any], str] | None]:
    """Return the function that computes a kind's numbers, and the function that makes its table.

    The second function is None for a kind with one row of numbers.
    """
    from heldin.defenses.accounting.account import account_els, account_example, account_uls
    from heldin.defenses.accounting.exposure_curve import account_user_entity, exposure_table
    from heldin.defenses.accounting.uedp_claims import account_uedp, uedp_table

    engines: dict[str, tuple[Callable[..., Any], Callable[[Any], str] | None]] = {
        "uls": (account_uls, None),
        "example": (account_example, None),
        "user-entity": (account_user_entity, exposure_table),
        "uedp": (account_uedp, uedp_table),
    }
    return engines.get(kind, (partial(account_els, method=kind), None))


def _require_fitting(kind: str, given: Mapping[str, Any], takes: Mapping[str, inspect.Parameter]) -> None:
    other = next((name for name in given if name not in takes or name == "method"), None)
    if other is not None:
        raise InputError(f"heldin account {kind} does not take {_option(other)}: leave this option out")
    if isinstance(given.get("delta"), str) and takes["delta"].default is inspect.Parameter.empty:
        raise InputError(f"heldin account {kind} needs a number for --delta: give a number such as 1e-6")
    needed = [name for name, taken in takes.items() if taken.default is inspect.Parameter.empty and name not in given]
    if needed:
        raise InputError(f"heldin account {kind} needs more options: give {' and '.join(map(_option, needed))}")


def _delta(text: str | None) -> "float | DeltaRule | None":
    from heldin.defenses.choices import DeltaRule

    if text is None or text in get_args(DeltaRule):
        return cast("DeltaRule | None", text)
    try:
        return number_in(text)
    except ValueError as error:
        raise InputError(f"--delta {text}: give a number or {' or '.join(get_args(DeltaRule))}") from error


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _counts(option: str, text: str) -> list[int]:
    """Return the whole numbers in a list such as "1,4,16". Raises InputError for other text."""
    try:
        return [whole_number_in(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} {text}: give whole numbers separated by commas, such as 1,4,16") from error


def _print_row(row: Any, json: bool, csv: bool) -> None:
    from heldin.defenses.accounting.account import account_table

    answer(account_table(row), row.as_dict(), [row.as_dict()], json=json, csv=csv)


def choose(
    users: Annotated[int, typer.Option(help="Public number of users, N.")],
    budget: Annotated[int, typer.Option(help="Expected number of gradients per step, B = group size x cohort.")],
    steps: Annotated[int, typer.Option(help="Number of optimizer steps T.")],
    target_epsilon: Annotated[float, typer.Option(help="Epsilon that every compared method must meet.")],
    delta: Delta = None,
    examples: Annotated[int | None, typer.Option(help="Public number of examples, for delta = examples^-1.1.")] = None,
    els_group_size: Annotated[int | None, typer.Option(help="Number of examples per user for ELS.")] = None,
    public_texts: Annotated[Path | None, _norm(help="File with texts of public users.")] = None,
    model: Annotated[
        str | None, _norm(metavar="MODEL", help="Base model that computes the gradients of the public texts.")
    ] = None,
    user: Annotated[str, _norm(help="Column with user names.")] = "user",
    text: Annotated[str, _norm(help="Column with texts.")] = "text",
    sequence_length: Annotated[int, _norm(min=1, help="Maximum number of tokens per text.")] = 128,
    quiet: Quiet = False,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Choose between ULS, banded noise and ELS at one compute budget.

    For ELS and for each group size of ULS (with and without banded noise), heldin compares the noise in sums of
    gradients over steps. Without --public-texts, heldin assumes a clip norm of 1 and recommends the method with the
    least noise. With --public-texts, heldin estimates clip norms and the ELS group size from these texts, and chooses
    by Estimate-and-Double (Charles et al., section 6). The last lines show how many made-up users a private training
    run needs to keep 50 % and 75 % of the gain from training without privacy (docs/users.md).
    """
    from heldin.audit.users_ladder import least_table, least_users, read_ladder
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.defenses.accounting import choose as engine

    # Before any import that takes seconds.
    if (public_texts is None) != (model is None):
        raise InputError(
            "heldin estimates clip norms from public texts and the base model: give both --public-texts"
            " and --model, or neither"
        )
    clip_norm = None
    if public_texts is not None and model is not None:
        from heldin.corpus.sources.rows import Columns
        from heldin.finetune.gradient_norms import public_users

        choice = public_users(public_texts, Columns(user, text), model, sequence_length, reporter_for_this_terminal())
        # A group size that was given wins over the median of the public users: it is a public constant either way
        # (docs/theory.md#public-constants).
        clip_norm, els_group_size = choice.clip_norm, els_group_size or choice.median_records
    chosen = engine.choose(
        users=users,
        budget=budget,
        steps=steps,
        target_epsilon=target_epsilon,
        delta=_delta(delta),
        examples=examples,
        els_group_size=els_group_size,
        clip_norm=clip_norm,
    )
    rows = [asdict(option) for option in chosen.options]
    least = least_users(read_ladder())
    fields = {**chosen.as_dict(), "made_up_users": [asdict(rung) for rung in least]}
    answer(f"{engine.table(chosen)}\n\n{least_table(least)}", fields, rows, json=json, csv=csv)


def bound(
    scores: Annotated[Path, typer.Argument(dir_okay=False, help="CSV file with the columns user, score, member.")],
    higher_is: Annotated[
        str, typer.Option(metavar="WORD", help="Group with the higher scores: member or non-member.")
    ] = "member",
    assignment: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="Rule that decided membership. coin: an independent fair coin for each user, not an exact half or"
            " one of each pair. fixed: another known way, such as by hand or by date. unknown: you do not know.",
        ),
    ] = "unknown",
    independent_trainings: Annotated[
        bool,
        typer.Option(
            "--independent-trainings",
            help="State that each row's score comes from a separate, independent training run.",
        ),
    ] = False,
    delta: Annotated[
        float | None, typer.Option(help="delta of the bounds (default: delta of the first claim).")
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Claim to test, such as epsilon=4,delta=1e-6. Repeatable."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="The plan.json of a mechanism. heldin tests the privacy curve of this plan as a claim.",
        ),
    ] = None,
    guesses: Annotated[int | None, typer.Option(help="Number of guesses, fixed before anyone saw the scores.")] = None,
    threshold: Annotated[
        list[float] | None, typer.Option(help="Score threshold, fixed before anyone saw the scores. Repeatable.")
    ] = None,
    attacks: Annotated[
        int, typer.Option(min=1, help="Number of attacks that you tried, if the scores are from the best one.")
    ] = 1,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Compute bounds and a verdict from any tool's scores.

    heldin prints every bound that is valid for this design, and why other bounds are not. Exit codes: 3
    if a claim is contradicted (certified), 4 if a claim is contradicted (indicative).
    """
    from heldin.bounds import judgement as engine
    from heldin.bounds.csv_scores import bound_scores, read_scores
    from heldin.bounds.design import Design, assignment_named
    from heldin.bounds.plan_claims import plan_claim
    from heldin.bounds.verdict import parse_claim

    claims = [parse_claim(text) for text in claim or []] + ([plan_claim(plan)] if plan else [])
    # Only who made the scores knows how membership came about: the design is taken at the user's word.
    design = Design(
        assignment_named(assignment),
        independent_trainings,
        coins_stated=True,  # not witnessed by heldin
        guesses=guesses,
        thresholds=tuple(threshold or ()),
        attacks=attacks,
    )
    result = bound_scores(read_scores(scores), design, higher_is=higher_is, delta=delta, claims=claims)
    answer(engine.table(result), result.as_dict(), result.rows(), json=json, csv=csv)
    # After the answer is printed: a violation is a result, not an error.
    raise typer.Exit(result.exit_code)


def power(
    users: Annotated[int, typer.Option(help="Number of users whose membership a coin decides.")],
    auroc: Annotated[float, typer.Option(help="Expected AUROC of the attack.")],
    delta: Annotated[float, typer.Option(help="delta of the epsilons.")] = 1e-5,
    claim: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Claim to test, such as epsilon=4,delta=1e-6. Repeatable."),
    ] = None,
    scores: Annotated[
        int, typer.Option(help="Number of scores that the audit tests together: attacks times aggregations.")
    ] = 15,
    access: Annotated[
        Literal["log-probabilities", "text"],
        typer.Option(help="Access level of the attacker. For text, --auroc is the AUROC with unlimited samples."),
    ] = "log-probabilities",
    samples: Annotated[int, typer.Option(help="With --access text: number of continuations per cut.")] = 16,
    sampling_noise: Annotated[
        float | None,
        typer.Option(
            hidden=True,
            help="With --access text: variance that one sample adds, divided by the variance among non-members"
            " (default: 40, as measured).",
        ),
    ] = None,
    exclude_auroc: ExcludeAuroc = None,
    exclude_tpr: ExcludeTpr = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Estimate the power of an audit before you pay for it."""
    from heldin.audit.exclusion import exclusion, lines
    from heldin.bounds import power as planning
    from heldin.bounds.sampling_noise import TYPICAL_NOISE, sampled_auroc
    from heldin.bounds.verdict import parse_claim

    claims = tuple(parse_claim(text) for text in claim or [])
    reached, heading = auroc, []
    if access == "text":
        reached = sampled_auroc(auroc, samples, TYPICAL_NOISE if sampling_noise is None else sampling_noise)
        heading = [f"AUROC with {samples} samples of each cut: {reached:.3f} (with unlimited samples: {auroc:g})", ""]
    forecast = planning.power(users, reached, delta, claims=claims)
    excluded = exclusion(users, thresholds(exclude_auroc, exclude_tpr), scores=scores)
    fields = {**forecast.as_dict(), "no_leak_found": excluded.as_dict()}
    # A row of CSV for each claim, and one without claims.
    rows = [{**fields, "claims": asked} for asked in fields["claims"]] or [{**fields, "claims": {}}]
    answer(
        "\n".join([*heading, planning.table(forecast), "", *lines(excluded, users)]), fields, rows, json=json, csv=csv
    )
