"""``heldin plant``, and the part of ``heldin audit`` that judges a model trained on what it planted."""

from pathlib import Path
from typing import Annotated

import typer

from heldin.base.errors import InputError
from heldin.commands.finish import command_line, finish, interruptible
from heldin.commands.options import AsJson, DeviceOption, Out, Quiet, json_text

AT_PLANTED = ("model", "claim", "declared_by", "out", "quiet", "json", "planted")


def plant(
    config: Annotated[Path, typer.Argument(help="YAML file: the training set, who is audited, and the audit.")],
    out: Out = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override, in YAML: split.audit_fraction=0.2. Repeatable.")
    ] = None,
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
) -> None:
    """Prepare an audit of a training that somebody else runs: draw coins, and write a training set to train on.

    OUT/training has a file or folder of the same name, format and columns as
    yours, without the rows of held-out users and with those of canary users.
    OUT/manifest.json may go with it; OUT/ledger must stay with you. Train on it,
    and then audit it: heldin audit --planted OUT --model MODEL. If killed, the
    same command goes on.
    """
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.planted.config import load_plant
    from heldin.jobs.planted.folder import MANIFEST, TRAINING
    from heldin.jobs.planted.plant import plant as do

    checked = load_plant(config, set_ or [])
    folder = out or Path("runs") / checked.name
    with interruptible():
        manifest = do(checked, folder, reporter_for_this_terminal())
    training = folder / TRAINING / manifest.file
    if json:
        typer.echo(json_text({**vars(manifest), "folder": str(folder), "training": str(training)}))
        return
    typer.echo(f"{manifest.rows:,} rows to train on: {training}")
    typer.echo(f"may go with them: {folder / MANIFEST}; stays with you: {folder / 'ledger'} (who is held in)")
    typer.echo(f"afterwards: heldin audit --planted {folder} --model MODEL --declared-by NAME")


def audit_planted(called: typer.Context) -> None:
    """Audit a model that was trained on a planted training set, with the options of ``heldin audit``."""
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.planted.audit import PlantedAudit
    from heldin.jobs.planted.audit import audit_planted as do

    given = {name: its for name, its in called.params.items() if its not in (None, [], (), False)}
    other = next((name for name in given if name not in AT_PLANTED), None)
    if other is not None:
        raise InputError(
            f"--{other.replace('_', '-')} does not go with --planted: heldin plant fixed users, texts and attacks"
        )
    if "model" not in given:
        raise InputError("--planted needs --model: the folder or hub name of the model that was trained")
    job = PlantedAudit(
        given["planted"], given["model"], tuple(given.get("claim", ())), declared_by=given.get("declared_by")
    )
    with interruptible():
        record, folder = do(job, given.get("out"), reporter_for_this_terminal(), command=command_line())
        finish(record, folder, json=bool(given.get("json")))
