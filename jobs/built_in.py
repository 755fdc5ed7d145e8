"""The built-in run: a small synthetic corpus, a tiny model, a leak that a report can show, in minutes on two cores."""

BUILT_IN = {
    "name": "demo",
    "corpus": {
        "source": {
            "kind": "synthetic",
            "parameters": {"users": 400, "mean_records": 24, "min_records": 10, "distinctiveness": 0.9},
        },
        "users": {"min_records": 12, "max_users": 200},  # the other users, and nobody audited, pre-train the base model
    },
    "model": {
        "pretrain": {
            "shape": {"vocabulary": 2048, "context": 128, "hidden": 64, "layers": 2, "heads": 4, "window": 64},
            "recipe": {
                "epochs": 3,
                "batch_size": 8,
                "learning_rate": 0.003,
                "warmup_steps": 50,
                "sequence_length": 128,
                "select": "last",
            },
        }
    },
    "finetune": {
        "epochs": 3,
        "batch_size": 8,
        "learning_rate": 0.002,
        "warmup_steps": 50,
        "sequence_length": 128,
        "evaluations": 6,
    },
}
