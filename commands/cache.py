"""``heldin cache``: list or clear what is kept to save time."""

from typing import Annotated

import typer

from heldin.base.errors import InputError
from heldin.commands.options import AsCsv, AsJson, answer, confirm, json_text


def cache(
    kind: Annotated[
        str | None, typer.Argument(help="Only one kind: corpora, scores, pretrained, references, sweeps or pld.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove it; refused while it is in use.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --clear: do not ask for confirmation.")] = False,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Show what the cache ($HELDIN_CACHE_DIR, else ~/.cache/heldin) holds and its size, or clear it."""
    from heldin.base import cache as engine
    from heldin.base.files import cache_root

    parts = engine.parts(kind)
    if not clear:
        rows = [part.as_dict() for part in parts]
        answer("\n".join(engine.lines(parts)), {"folder": str(cache_root()), "kinds": rows}, rows, json=json, csv=csv)
        return
    if csv:
        raise InputError("--csv is for the list: leave it out with --clear")
    # Asked after the folders were read, so that sizes are seen before the answer.
    confirm(engine.lines(parts), "Remove all this? It will be made again when needed.", yes=yes)
    size = engine.clear(parts)
    kinds = [part.kind for part in parts]
    typer.echo(
        json_text({"removed_bytes": size, "kinds": kinds}) if json else f"removed {size:,} bytes: {', '.join(kinds)}"
    )
