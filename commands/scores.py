"""``heldin bound`` and ``heldin power``: what any tool's scores say, and what an audit could say at best."""

from pathlib import Path
from typing import Annotated

import typer

from heldin.commands.options import AsCsv, AsJson, ExcludeAuroc, ExcludeTpr, answer, thresholds


def bound(
    scores: Annotated[Path, typer.Argument(help="CSV with the columns user, score, member.")],
    higher_is: Annotated[str, typer.Option(help="Whom a higher score indicates: member or non-member.")] = "member",
    assignment: Annotated[
        str,
        typer.Option(
            help="How membership was decided. coin: an independent fair coin for each user, not an exact half"
            " and not one of each pair. fixed: any other known way, by hand or by date included. unknown: you do not"
            " know."
        ),
    ] = "unknown",
    independent_trainings: Annotated[
        bool, typer.Option("--independent-trainings", help="Each row comes from its own independent training.")
    ] = False,
    delta: Annotated[float | None, typer.Option(help="delta of the bounds (default: the first claim's).")] = None,
    claim: Annotated[
        list[str] | None, typer.Option(help="Claim to test, such as epsilon=4,delta=1e-6. Repeatable.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="plan.json whose privacy curve is tested as a claim.")] = None,
    guesses: Annotated[int | None, typer.Option(help="Number of guesses, chosen before looking at the scores.")] = None,
    threshold: Annotated[
        list[float] | None, typer.Option(help="Score threshold chosen before looking at the scores. Repeatable.")
    ] = None,
    attacks: Annotated[
        int, typer.Option(min=1, help="Number of attacks tried, if these scores are the best of several.")
    ] = 1,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Bounds and verdict from any tool's scores: which are valid for this design, which are refused and why.

    Exit codes: 3 certified violation of a claim, 4 indicative violation.
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
    users: Annotated[int, typer.Option(help="Number of users whose membership is decided by coin.")],
    auroc: Annotated[float, typer.Option(help="Expected AUROC of the attack.")],
    delta: Annotated[float, typer.Option(help="delta of the epsilons.")] = 1e-5,
    claim: Annotated[
        list[str] | None, typer.Option(help="Claim to test, such as epsilon=4,delta=1e-6. Repeatable.")
    ] = None,
    scores: Annotated[
        int, typer.Option(help="Number of scores judged together: attacks times ways to aggregate.")
    ] = 15,
    exclude_auroc: ExcludeAuroc = None,
    exclude_tpr: ExcludeTpr = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Estimate what an audit could certify, falsify or exclude, before you pay for it."""
    from heldin.audit.exclusion import exclusion, lines
    from heldin.bounds import power as planning
    from heldin.bounds.verdict import parse_claim

    claims = tuple(parse_claim(text) for text in claim or [])
    forecast = planning.power(users, auroc, delta, claims=claims)
    excluded = exclusion(users, thresholds(exclude_auroc, exclude_tpr), scores=scores)
    fields = {**forecast.as_dict(), "no_leak_found": excluded.as_dict()}
    # A row of CSV for each claim, and one without claims.
    rows = [{**fields, "claims": asked} for asked in fields["claims"]] or [{**fields, "claims": {}}]
    answer("\n".join([planning.table(forecast), "", *lines(excluded, users)]), fields, rows, json=json, csv=csv)
