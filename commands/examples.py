"""The examples at the end of the help pages; tests/end_to_end/test_help_examples.py runs them in this order.

The example corpus, which the first one writes, is what all others use.
"""

_FILES = "--held-in example/held_in.jsonl --held-out example/held_out.jsonl --user author --text body"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "corpus example": ("heldin corpus example --out example --models",),
    "corpus build": ("heldin corpus build example/corpus.jsonl --user author --text body",),
    "corpus stats": ("heldin corpus stats example/corpus.jsonl --user author --text body",),
    "corpus entities": ("heldin corpus entities example/corpus.jsonl --pattern email --user author --text body",),
    "corpus presets": ("heldin corpus presets",),
    "audit": (
        f"heldin audit --model example/model --reference example/base {_FILES}",
        "heldin audit --config audit.yaml --limit 50 --fail-on leaks --out runs/fifty",
    ),
    "audit-endpoint": (
        f"heldin audit-endpoint http://localhost:8000/v1 --model model --reference endpoint:base {_FILES} -o runs/api",
    ),
    "init": ("heldin init run --kind uls --out uls.yaml", "heldin init plant"),
    "config": ("heldin config run finetune.epochs", "heldin config audit"),
    "run": (
        "heldin run example/run.yaml --check",
        "heldin run example/run.yaml --set finetune.epochs=2 --out runs/two-epochs",
    ),
    "report": ("heldin report runs/two-epochs --html",),
    "compare": ("heldin compare runs/two-epochs runs/my-own --over finetune.epochs --out curves",),
    "verify": ("heldin verify runs/two-epochs", "heldin verify --exported public"),
    "export": ("heldin export runs/two-epochs --out public",),
    "purge": ("heldin purge runs/two-epochs --keep record,report,model",),
    "cache": ("heldin cache", "heldin cache scores --clear"),
    "sweep": ("heldin sweep sweep.yaml --check", "heldin sweep sweep.yaml --set blocks=1 --html"),
    "demo": ("heldin demo --html",),
    "plant": ("heldin plant plant.yaml --check", "heldin plant plant.yaml --out planted"),
    "audit-planted": ("heldin audit-planted planted --model example/model --claim epsilon=8,delta=1e-6,unit=user",),
    "retrain": ("heldin retrain uls.yaml --trainings 40",),
    "white-box": (
        "heldin white-box --kind uls --users 100 --cohort 10 --steps 20 --delta 1e-3 --target-epsilon 4 --canaries 200",
    ),
    "bound": ("heldin bound example/scores.csv --assignment coin --claim epsilon=1,delta=1e-5",),
    "power": (
        "heldin power --users 500 --auroc 0.75",
        "heldin power --users 200 --auroc 0.8 --claim epsilon=1,delta=1e-5",
    ),
    "account": (
        "heldin account uls --users 1024 --cohort 16 --steps 1000 --delta 1e-6 --target-epsilon 4",
        "heldin account runs/my-uls/plan.json",
    ),
    "choose": ("heldin choose --users 1024 --budget 512 --steps 1000 --target-epsilon 4",),
}


def epilog(command: str) -> str | None:
    """Return the end of a command's help page; None without examples."""
    lines = EXAMPLES.get(command, ())
    # typer keeps only empty lines.
    return "\n\n".join(["Example:" if len(lines) == 1 else "Examples:", *lines]) if lines else None
