"""A callback for transformers' Trainer and TRL that logs the sequences that a training gives the model."""

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from heldin.planting.watching import Watch


class AuditCallback(TrainerCallback):  # type: ignore[misc]
    """Log every sequence that the model gets in training, and the weights of each checkpoint.

    Use ``Trainer(..., callbacks=[heldin.AuditCallback("planted")])``, or the same argument of TRL's trainers. With the
    log, ``heldin audit-planted`` checks facts that the signing person would otherwise have to declare. A resumed
    training adds to the log. For a custom training loop use ``heldin.watch_training``.

    The log contains the labels that the model gets. If the trainer computes the loss outside the model (label
    smoothing, ``compute_loss_func``, a custom ``compute_loss``), the log contains the labels of the batch or of the
    loss function.

    Args:
        planted: the folder that ``heldin plant`` wrote, or a copy of its ``manifest.json`` and ``training``.
        log: folder of the log; None: ``training-log`` in ``planted``, where the audit searches for the log.

    Raises:
        InputError: the folder has no manifest or training set, or the training set does not match the manifest.
    """

    def __init__(self, planted: str | Path, log: str | Path | None = None) -> None:
        self._watch = Watch(planted, log)
        self._hooks = contextlib.ExitStack()

    def on_train_begin(self, *trainer: Any, **kwargs: Any) -> None:
        """Begin a segment of the log.

        Args:
            *trainer: the Trainer's arguments, state and control, as in every event.
            **kwargs: contains the model and the tokenizer (``processing_class``).
        """
        args, state, _ = trainer
        self._hooks.close()
        self._watch.start(
            kwargs["model"],
            kwargs.get("processing_class"),
            step=state.global_step,
            process=args.process_index,
            processes=args.world_size,
        )
        running = _running_trainer()
        if running is not None:
            _see_labels(running, self._watch, self._hooks)

    def on_save(self, *trainer: Any, **kwargs: Any) -> None:
        """Log the weights of a checkpoint; see ``on_train_begin``."""
        _, state, _ = trainer
        self._watch.checkpoint(state.global_step, state.epoch, kwargs.get("model"))

    def on_train_end(self, *trainer: Any, **kwargs: Any) -> None:
        """Log the weights at the end of training; see ``on_train_begin``."""
        self.on_save(*trainer, **kwargs)
        self._hooks.close()
        self._watch.stop()


def _running_trainer() -> Trainer | None:
    """Return the Trainer that calls this callback. An event receives parts of the Trainer, but not the Trainer
    itself."""
    frame = sys._getframe(1)
    while frame is not None:
        if isinstance(caller := frame.f_locals.get("self"), Trainer):
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _see_labels(trainer: Trainer, watch: Watch, hooks: contextlib.ExitStack) -> None:
    """Give the watch the labels of each batch, and the labels of a loss function outside the model.

    Args:
        hooks: stack that receives functions which undo the changes to the trainer.
    """
    compute_loss = trainer.compute_loss

    @functools.wraps(compute_loss)
    def with_labels(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with watch.labels_of_batch(inputs.get("labels") if isinstance(inputs, Mapping) else None):
            return compute_loss(model, inputs, *args, **kwargs)

    _replace(trainer, "compute_loss", with_labels, hooks)
    for name in ("compute_loss_func", "label_smoother"):
        loss = getattr(trainer, name, None)
        if loss is not None:
            _replace(trainer, name, _telling_labels(loss, watch), hooks)


def _telling_labels(loss: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    def with_labels(outputs: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
        watch.labels_of_loss(labels)
        return loss(outputs, labels, *args, **kwargs)

    return with_labels


def _replace(trainer: Trainer, name: str, value: Any, hooks: contextlib.ExitStack) -> None:
    own = vars(trainer)
    before = (setattr, trainer, name, own[name]) if name in own else (delattr, trainer, name)
    setattr(trainer, name, value)
    hooks.callback(*before)
