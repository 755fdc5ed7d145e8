"""A callback for transformers' Trainer and TRL that logs what a training on a planted set was given."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from heldin.watch.watching import Watch


class AuditCallback(TrainerCallback):  # type: ignore[misc]
    """Log every sequence that the model is given in training, and the weights of each checkpoint.

    ``Trainer(..., callbacks=[heldin.AuditCallback("planted")])``; TRL's trainers likewise. ``heldin audit-planted``
    then checks what the person who signs would otherwise declare. A training that is stopped and resumed adds to the
    log. For a loop of one's own there is ``heldin.watch_training``.

    Args:
        planted: the folder that ``heldin plant`` wrote, or a copy of its ``manifest.json`` and ``training``.
        log: folder of the log; None: ``training-log`` in ``planted``, where the audit looks for it.

    Raises:
        InputError: the folder has no manifest or training set, or the training set is not that of the manifest.
    """

    def __init__(self, planted: str | Path, log: str | Path | None = None) -> None:
        self._watch = Watch(planted, log)

    def on_train_begin(self, *trainer: Any, **kwargs: Any) -> None:
        """Begin a segment of the log.

        Args:
            *trainer: the Trainer's arguments, state and control, as for every event.
            **kwargs: hold the model and the tokenizer (``processing_class``).
        """
        args, state, _ = trainer
        self._watch.start(
            kwargs["model"],
            kwargs.get("processing_class"),
            step=state.global_step,
            process=args.process_index,
            processes=args.world_size,
        )

    def on_save(self, *trainer: Any, **kwargs: Any) -> None:
        """Log the weights of a checkpoint; see ``on_train_begin``."""
        _, state, _ = trainer
        self._watch.checkpoint(state.global_step, state.epoch, kwargs.get("model"))

    def on_train_end(self, *trainer: Any, **kwargs: Any) -> None:
        """Log the weights at the end; see ``on_train_begin``."""
        self.on_save(*trainer, **kwargs)
        self._watch.stop()
