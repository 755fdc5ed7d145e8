"""``heldin account``: what a mechanism costs and promises, without training."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from heldin.base.arguments import whole_number_in
from heldin.base.errors import InputError
from heldin.commands.options import (
    AsCsv,
    AsJson,
    Batch,
    Delta,
    Examples,
    GroupSize,
    Noise,
    Rate,
    Steps,
    Target,
    answer,
)

# Modules of the engine are imported inside the commands, here and in the files beside this one: most of them load scipy
# or torch, and ``heldin --help`` would wait seconds for what it does not use.
if TYPE_CHECKING:
    from heldin.defenses.accounting.account import AccountRow


NORMS = "Clip norms, estimated from public users' texts"
ALGORITHM = "Algorithm 1 of the paper"


class _AccountGroup(typer.core.TyperGroup):
    """Accepts a plan file in place of a subcommand: ``heldin account plan.json``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            # Only a name that looks like a file is taken for a plan: a mistyped subcommand
            # gets the usual error and its hint.
            named = Path(args[0])
            if named.suffix == ".json":
                args = ["plan", *args]
            elif named.exists() or named.suffix:
                raise InputError(
                    f"'{named}' is no plan: heldin account takes the plan.json of a run folder, or one of"
                    f" {', '.join(self.commands)}"
                )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_AccountGroup,
    help="Noise, epsilon and the bound on any attacker for a mechanism, without training.",
    no_args_is_help=True,
)


@app.command()
def uls(
    steps: Steps,
    delta: Delta,
    users: Annotated[int | None, typer.Option(help="Public number of users N.")] = None,
    cohort: Annotated[
        float | None, typer.Option(help="Expected number of users per step M; the sampling rate is M / N.")
    ] = None,
    sampling_rate: Rate = None,
    cap: Annotated[int | None, typer.Option(help="Maximum number of users in a step.")] = None,
    noise_multiplier: Noise = None,
    target_epsilon: Target = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """User-level sampling (Charles et al., Algorithm 2): epsilon per user."""
    from heldin.defenses.accounting.account import account_uls

    _account(
        account_uls(
            steps=steps,
            delta=delta,
            users=users,
            cohort=cohort,
            sampling_rate=sampling_rate,
            cap=cap,
            noise_multiplier=noise_multiplier,
            target_epsilon=target_epsilon,
        ),
        json,
        csv,
    )


def _account_els(
    context: typer.Context,
    steps: Steps,
    delta: Delta,
    group_size: GroupSize,
    examples: Examples = None,
    batch: Batch = None,
    sampling_rate: Rate = None,
    noise_multiplier: Noise = None,
    target_epsilon: Target = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    from heldin.defenses.accounting.account import account_els

    row = account_els(
        steps=steps,
        delta=delta,
        group_size=group_size,
        examples=examples,
        batch=batch,
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
        # One function for two commands: the name under which it was called, els or group, is the method.
        method=str(context.info_name),
    )
    _account(row, json, csv)


app.command(
    "els", help="Example-level sampling, at most G examples per user (Charles et al., Theorem 1): epsilon per user."
)(_account_els)


app.command(
    "group", help="Group privacy, exactly k records per user (Chua et al.): epsilon per user, tight and black-box."
)(_account_els)


@app.command()
def example(
    steps: Steps,
    delta: Delta,
    examples: Examples = None,
    batch: Batch = None,
    sampling_rate: Rate = None,
    group_size: Annotated[
        int | None, typer.Option(help="Also bound attacks on a user with this many examples.")
    ] = None,
    noise_multiplier: Noise = None,
    target_epsilon: Target = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Example-level DP-SGD: epsilon per example. Without --group-size there is no finite guarantee per user."""
    from heldin.defenses.accounting.account import account_example

    _account(
        account_example(
            steps=steps,
            delta=delta,
            examples=examples,
            batch=batch,
            sampling_rate=sampling_rate,
            group_size=group_size,
            noise_multiplier=noise_multiplier,
            target_epsilon=target_epsilon,
        ),
        json,
        csv,
    )


@app.command("user-entity")
def user_entity(
    steps: Steps,
    delta: Delta,
    sampling_rate: Annotated[float, typer.Option(help="Probability that a text is sampled in a step.")],
    exposed: Annotated[
        str | None, typer.Option(help="Numbers of texts at which the curve is shown, such as 1,4,16.")
    ] = None,
    group_size: Annotated[int | None, typer.Option(help="Maximum number of texts per user, G.")] = None,
    entity_cap: Annotated[int | None, typer.Option(help="Maximum number of texts that name an entity, k.")] = None,
    noise_multiplier: Noise = None,
    target_epsilon: Annotated[
        float | None,
        typer.Option(help="Calibrate the noise to this epsilon: of G + k texts, or without caps of the most exposed."),
    ] = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Text sampling: epsilon by the number of texts that a person wrote or is named in."""
    from heldin.defenses.accounting import exposure_curve as engine

    accounted = engine.account_user_entity(
        steps=steps,
        delta=delta,
        sampling_rate=sampling_rate,
        exposed=_counts("--exposed", exposed),
        group_size=group_size,
        entity_cap=entity_cap,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
    )
    answer(engine.exposure_table(accounted), accounted.as_dict(), accounted.rows(), json=json, csv=csv)


@app.command()
def uedp(
    users: Annotated[int, typer.Option(help="Public number of users.")],
    cohort: Annotated[float, typer.Option(help="Expected number of users per step.")],
    steps: Steps,
    delta: Delta = 1e-5,
    noise_multiplier: Annotated[float, typer.Option(help="z of Algorithm 1.")] = 2.0,
    entity_rate: Annotated[
        float,
        typer.Option(help="Probability that a recognised entity is sampled in a step.", rich_help_panel=ALGORITHM),
    ] = 0.5,
    sensitive_share: Annotated[
        float | None, typer.Option(help="Share of records with a recognised entity, for the claim of f_E+.")
    ] = None,
    holders: Annotated[
        str | None, typer.Option(help="Numbers of other users who name the entity, such as 1,16,946.")
    ] = None,
    noise_scale: Annotated[
        str,
        typer.Option(help="Of what the noise is a multiple: cohort (line 14) or clip-norm.", rich_help_panel=ALGORITHM),
    ] = "cohort",
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Account for user-entity DP of Lai et al.: the claim of the paper's accountant, and what in fact holds."""
    from heldin.defenses.accounting import uedp_claims as engine

    if noise_scale not in ("cohort", "clip-norm"):
        raise InputError(f"--noise-scale {noise_scale} is unknown: use cohort or clip-norm")
    accounted = engine.account_uedp(
        users=users,
        cohort=cohort,
        steps=steps,
        delta=delta,
        noise_multiplier=noise_multiplier,
        entity_rate=entity_rate,
        sensitive_share=sensitive_share,
        holders=_counts("--holders", holders),
        noise_scale="cohort" if noise_scale == "cohort" else "clip-norm",
    )
    answer(engine.uedp_table(accounted), accounted.as_dict(), accounted.rows(), json=json, csv=csv)


def _counts(option: str, text: str | None) -> list[int]:
    """Return the whole numbers of a list such as "1,4,16"; none for None."""
    try:
        return [whole_number_in(part) for part in text.split(",")] if text is not None else []
    except ValueError as error:
        raise InputError(f"{option} {text} is not a list of whole numbers such as 1,4,16") from error


@app.command()
def choose(
    users: Annotated[int, typer.Option(help="Public number of users N.")],
    budget: Annotated[int, typer.Option(help="Expected gradients per step, B = group size x cohort.")],
    steps: Steps,
    target_epsilon: Annotated[float, typer.Option(help="epsilon that every option must meet.")],
    delta: Annotated[float | None, typer.Option(help="delta of every option (default: N^-1.1).")] = None,
    els_group_size: Annotated[int | None, typer.Option(help="Examples per user in the ELS row.")] = None,
    public_texts: Annotated[
        Path | None, typer.Option(help="File of public users' texts.", rich_help_panel=NORMS)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Base model whose gradients are measured.", rich_help_panel=NORMS)
    ] = None,
    user: Annotated[str, typer.Option(help="Column that names the user.", rich_help_panel=NORMS)] = "user",
    text: Annotated[str, typer.Option(help="Column that holds the text.", rich_help_panel=NORMS)] = "text",
    sequence_length: Annotated[int, typer.Option(min=1, help="Tokens per text.", rich_help_panel=NORMS)] = 128,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Compare ULS group sizes and ELS at one compute budget by the noise each adds, and choose (Estimate-and-Double).

    Clip norms and the ELS group size are estimated from public users' texts only (Charles et al., section 6).
    """
    from heldin.defenses.accounting import choose as engine

    # Before any import that takes seconds.
    if (public_texts is None) != (model is None):
        raise InputError("--public-texts and --model go together: clip norms are estimated at the base model")
    clip_norm = None
    if public_texts is not None and model is not None:
        from heldin.corpus.sources.rows import Columns
        from heldin.finetune.gradient_norms import public_users

        choice = public_users(public_texts, Columns(user, text), model, sequence_length)
        # A group size that was given wins over the median of the public users: it is a public constant either way
        # (docs/theory.md#public-constants).
        clip_norm, els_group_size = choice.clip_norm, els_group_size or choice.median_records
    chosen = engine.choose(
        users=users,
        budget=budget,
        steps=steps,
        target_epsilon=target_epsilon,
        delta=delta,
        els_group_size=els_group_size,
        clip_norm=clip_norm,
    )
    rows = [asdict(option) for option in chosen.options]
    answer(engine.table(chosen), chosen.as_dict(), rows, json=json, csv=csv)


@app.command()
def plan(
    path: Annotated[Path, typer.Argument(help="plan.json of a run folder.")],
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """The same numbers from the plan that a run wrote; heldin account RUN/plan.json for short."""
    from heldin.defenses.accounting.account import account_plan
    from heldin.defenses.plan_file import read_plan

    _account(account_plan(read_plan(path)), json, csv)


def _account(row: "AccountRow", json: bool, csv: bool) -> None:
    from heldin.defenses.accounting.account import account_table

    answer(account_table(row), row.as_dict(), [row.as_dict()], json=json, csv=csv)
