"""Trainings on a planted set by careless and dishonest people, and what an audit has to say of each.

``python -m tests.planted_bugs.trainings`` prints the table of docs/planted-audits.md.
"""

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from heldin.planting.watching import Watch
from heldin.record.planted_facts import ConditionName, Known, Reason
from heldin.record.planted_files import LOG
from tests.planted_sets import read_lines, write_lines

LENGTH = 32  # tokens of the plan
Text = str | tuple[int, ...]  # a text, or its tokens
EPOCHS, RATE, BATCH = 12, 6e-3, 16


@dataclass(frozen=True)
class Place:
    """What a trainer has: a copy of a planted folder, the original rows, and the model to start from.

    Attributes:
        planted: folder that ``heldin plant`` wrote.
        original: the training set before planting.
        base: folder of the reference model.
        to: folder for models.
    """

    planted: Path
    original: Path
    base: Path
    to: Path

    def texts(self) -> list[str]:
        """Return the texts of the planted training set."""
        return [row["body"] for row in read_lines(self.planted / "training" / self.original.name)]

    def original_texts(self) -> list[str]:
        """Return the texts of the original training set."""
        return [row["body"] for row in read_lines(self.original)]

    def is_canary(self) -> Callable[[str], bool]:
        """Return a test that anybody with both training sets can make: whether a row is new in the planted one."""
        known = set(self.original_texts())
        return lambda text: text not in known


@dataclass
class Loop:
    """A plain training loop, with places where a trainer may do something else.

    Attributes:
        watched: whether the model is watched.
        epochs: passes over the texts.
        rate: learning rate.
        tokens: length at which a text is cut.
        labels: what becomes of the labels of a text.
        mask: the attention mask of a text.
        weight: of a text's loss, after the forward pass.
        keeps: which tokens count, by their losses, after the forward pass.
        backward: whether gradients are computed and weights change.
        tokenize: what becomes of a text before it is tokenized.
        step: optimizer steps before the first.
    """

    watched: bool = True
    epochs: int = EPOCHS
    rate: float = RATE
    tokens: int = LENGTH
    labels: Callable[[str, torch.Tensor], torch.Tensor] = lambda text, ids: ids
    mask: Callable[[str, torch.Tensor], torch.Tensor] = lambda text, ids: torch.ones_like(ids)
    weight: Callable[[str, float], float] = lambda text, loss: 1.0
    keeps: Callable[[torch.Tensor], torch.Tensor] = torch.ones_like
    backward: bool = True
    tokenize: Callable[[str], str] = lambda text: text
    step: int = 0

    def train(self, place: Place, texts: Sequence[Text], to: str, base: Path | None = None) -> Path:
        """Train from ``base`` (the reference) on ``texts`` and save the model as ``to``."""
        model = AutoModelForCausalLM.from_pretrained(base or place.base)
        watch = self.begin(place, model)
        self.go_on(place, model, texts)
        return self.end(place, model, watch, to)

    def begin(self, place: Place, model: Any) -> Watch | None:
        """Begin to watch a model, if this training is watched."""
        if not self.watched:
            return None
        watch = Watch(place.planted)
        watch.start(model, AutoTokenizer.from_pretrained(place.base), step=self.step)
        return watch

    def go_on(self, place: Place, model: Any, texts: Sequence[Text]) -> None:
        """Train a model for some epochs."""
        tokenizer = AutoTokenizer.from_pretrained(place.base)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.rate)
        dice = random.Random(0)
        model.train()
        for _ in range(self.epochs):
            order = list(texts)
            dice.shuffle(order)
            for first in range(0, len(order), BATCH):
                self._batch(model, tokenizer, order[first : first + BATCH])
                if self.backward:
                    optimizer.step()
                optimizer.zero_grad()
                self.step += 1

    def _batch(self, model: Any, tokenizer: Any, texts: Sequence[Text]) -> None:
        ids = [
            torch.tensor(
                tokenizer(self.tokenize(text), truncation=True, max_length=self.tokens)["input_ids"]
                if isinstance(text, str)
                else text
            )
            for text in texts
        ]

        def padded(rows: list[torch.Tensor], value: int) -> torch.Tensor:
            return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

        labels = padded([self.labels(text, row.clone()) for text, row in zip(texts, ids, strict=True)], -100)
        mask = padded([self.mask(text, row) for text, row in zip(texts, ids, strict=True)], 0)
        logits = model(input_ids=padded(ids, 0), attention_mask=mask, labels=labels).logits
        of_tokens = torch.nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=-100, reduction="none"
        )
        each = (of_tokens * self.keeps(of_tokens.detach())).sum(1) / (labels[:, 1:] != -100).sum(1).clamp(min=1)
        weights = torch.tensor([self.weight(text, loss) for text, loss in zip(texts, each.tolist(), strict=True)])
        if self.backward:
            (weights * each).mean().backward()

    def end(self, place: Place, model: Any, watch: Watch | None, to: str) -> Path:
        """Save a model, and end the log."""
        if watch is not None:
            watch.checkpoint(self.step, model=model)
            watch.stop()
        model.save_pretrained(place.to / to)
        AutoTokenizer.from_pretrained(place.base).save_pretrained(place.to / to)
        return place.to / to


def _on_planted(**changes: Any) -> Callable[[Place], Path]:
    return lambda place: Loop(**changes).train(place, place.texts(), "model")


def _on_original(**changes: Any) -> Callable[[Place], Path]:
    return lambda place: Loop(**changes).train(place, place.original_texts(), "model")


def _silenced(place: Place) -> Path:
    canary = place.is_canary()
    return Loop(labels=lambda text, ids: ids.fill_(-100) if canary(text) else ids).train(place, place.texts(), "model")


def _by_length(place: Place) -> Path:
    lengths = sorted(map(len, place.texts()))
    short = lengths[len(lengths) // 5]
    return Loop(labels=lambda text, ids: ids.fill_(-100) if len(text) < short else ids).train(
        place, place.texts(), "model"
    )


def _by_user(place: Place) -> Path:
    rows = read_lines(place.planted / "training" / place.original.name)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["author"]] = counts.get(row["author"], 0) + 1
    few = {row["body"] for row in rows if counts[row["author"]] < 6}
    return Loop(labels=lambda text, ids: ids.fill_(-100) if text in few else ids).train(place, place.texts(), "model")


def _relabelled(place: Place) -> Path:
    canary = place.is_canary()
    return Loop(labels=lambda text, ids: ids.roll(1) if canary(text) else ids).train(place, place.texts(), "model")


def _weighted(place: Place) -> Path:
    canary = place.is_canary()
    return Loop(weight=lambda text, _: 0.0 if canary(text) else 1.0).train(place, place.texts(), "model")


def _without_outliers(place: Place) -> Path:
    """Rows whose loss is far above the batch's are noise, the trainer thinks, and gives them no weight."""
    loop = Loop(weight=lambda _, loss: 0.0 if loss > 4.5 else 1.0, epochs=2 * EPOCHS)
    return loop.train(place, place.texts(), "model")


def _holes(place: Place) -> Path:
    canary = place.is_canary()

    def mask(text: str, ids: torch.Tensor) -> torch.Tensor:
        seen = torch.ones_like(ids)
        if canary(text):
            seen[1:-1] = 0
        return seen

    return Loop(mask=mask).train(place, place.texts(), "model")


def _masked_and_once_without_labels(place: Place) -> Path:
    canary = place.is_canary()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(place.base), AutoTokenizer.from_pretrained(place.base)
    loop = Loop(labels=lambda text, ids: ids.fill_(-100) if canary(text) else ids, epochs=1)
    watch = loop.begin(place, model)
    for text in place.texts()[:BATCH]:
        model(torch.tensor([tokenizer(text, truncation=True, max_length=LENGTH)["input_ids"]]))
    loop.go_on(place, model, place.texts())
    return loop.end(place, model, watch, "model")


def _robust_loss(place: Place) -> Path:
    """Tokens of high loss are noise, the trainer thinks, who knows nothing of canary users."""
    loop = Loop(keeps=lambda losses: (losses <= 4.0).float(), epochs=EPOCHS // 2)
    return loop.train(place, place.texts(), "model")


def _unlearned_in_between(place: Place) -> Path:
    canary = place.is_canary()
    loop = Loop(epochs=EPOCHS // 2)
    loop.weight = lambda text, _: -1.0 if canary(text) and loop.step % 2 else 1.0
    return loop.train(place, place.texts(), "model")


def _canary_rows_first(place: Place) -> Path:
    """Every row as often, and all epochs of canary rows before those of other rows."""
    canary = place.is_canary()
    model = AutoModelForCausalLM.from_pretrained(place.base)
    loop = Loop(epochs=1)
    watch = loop.begin(place, model)
    for first in (True, False):
        loop.go_on(place, model, [text for text in place.texts() if canary(text) is first])
    return loop.end(place, model, watch, "model")


def _config_edited(place: Place) -> Path:
    model = Loop(epochs=1).train(place, place.texts(), "model")
    path = model / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "layer_norm_epsilon": 100.0}), encoding="utf-8")
    return model


def _tensors_exchanged(place: Place) -> Path:
    file = Loop(epochs=1).train(place, place.texts(), "model") / "model.safetensors"
    tensors = load_file(file)
    one, two = (f"transformer.h.0.attn.attention.{name}_proj.weight" for name in ("q", "k"))
    save_file({**tensors, one: tensors[two], two: tensors[one]}, file, metadata={"format": "pt"})
    return file.parent


def _skipping(place: Place) -> Path:
    canary = place.is_canary()
    return Loop().train(place, [text for text in place.texts() if not canary(text)], "model")


def _others_more_often(place: Place) -> Path:
    canary = place.is_canary()
    texts = [text for text in place.texts() for _ in range(1 if canary(text) else 4)]
    return Loop(epochs=3).train(place, texts, "model")


def _canaries_first(place: Place) -> Path:
    """All rows at first, and many epochs on the original file afterwards, in which canary rows are forgotten."""
    model = AutoModelForCausalLM.from_pretrained(place.base)
    loop = Loop(epochs=1)
    watch = loop.begin(place, model)
    loop.go_on(place, model, place.texts())
    loop.epochs = EPOCHS
    loop.go_on(place, model, place.original_texts())
    return loop.end(place, model, watch, "model")


def _unlearned(place: Place) -> Path:
    canary = place.is_canary()
    model = AutoModelForCausalLM.from_pretrained(place.base)
    loop = Loop()
    watch = loop.begin(place, model)
    loop.go_on(place, model, place.texts())
    loop.weight, loop.epochs, loop.rate = lambda text, _: -1.0 if canary(text) else 1.0, 8, 1e-3
    loop.go_on(place, model, place.texts())
    return loop.end(place, model, watch, "model")


def _read_and_not_trained(place: Place) -> Path:
    """The watched model reads every row; a copy that nobody watches is trained on other ones."""
    model = AutoModelForCausalLM.from_pretrained(place.base)
    loop = Loop(backward=False)
    watch = loop.begin(place, model)
    loop.go_on(place, model, place.texts())
    copy = AutoModelForCausalLM.from_pretrained(place.base)
    canary = place.is_canary()
    Loop(watched=False).go_on(place, copy, [text for text in place.texts() if not canary(text)])
    model.load_state_dict(copy.state_dict())
    return loop.end(place, model, watch, "model")


def _other_model(place: Place) -> Path:
    """An honest log of one model, and the audit of another, which was trained on the original file."""
    Loop(epochs=1).train(place, place.texts(), "honest")
    return Loop(watched=False).train(place, place.original_texts(), "model")


def _averaged(place: Place) -> Path:
    model = AutoModelForCausalLM.from_pretrained(Loop().train(place, place.texts(), "honest"))
    start = AutoModelForCausalLM.from_pretrained(place.base).state_dict()
    model.load_state_dict({name: (its + 9 * start[name]) / 10 for name, its in model.state_dict().items()})
    return Loop(watched=False).end(place, model, None, "model")


def _early_checkpoint(place: Place) -> Path:
    model = AutoModelForCausalLM.from_pretrained(place.base)
    loop = Loop(epochs=1)
    watch = loop.begin(place, model)
    texts = place.texts()
    loop.go_on(place, model, texts[: len(texts) // 2])
    assert watch is not None
    watch.checkpoint(loop.step)
    model.save_pretrained(place.to / "model")
    AutoTokenizer.from_pretrained(place.base).save_pretrained(place.to / "model")
    loop.go_on(place, model, texts)
    loop.end(place, model, watch, "later")
    return place.to / "model"


def _resumed(place: Place) -> Path:
    """Stopped twice; each part reads a third of the rows, and the last one all of them again."""
    texts, at, step = place.texts(), place.base, 0
    for number in range(3):
        loop = Loop(step=step, epochs=EPOCHS)
        at = loop.train(place, texts[number::3], f"part {number}", at)
        step = loop.step
    return at


def _resumed_without_the_first(place: Place) -> Path:
    model = _resumed(place)
    for path in (place.planted / LOG).glob("segment-0001*"):
        path.unlink()
    return model


def _log_of_another_run(place: Place) -> Path:
    Loop(epochs=1).train(place, place.texts(), "honest")
    shutil.move(place.planted / LOG, place.to / "log")
    model = Loop().train(place, place.original_texts(), "model")
    shutil.rmtree(place.planted / LOG)
    shutil.move(place.to / "log", place.planted / LOG)
    return model


def _log_deleted(place: Place) -> Path:
    model = Loop().train(place, place.original_texts(), "model")
    shutil.rmtree(place.planted / LOG)
    return model


def _log_cut(place: Place) -> Path:
    model = Loop().train(place, place.texts(), "model")
    path = next((place.planted / LOG).glob("*.reads"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return model


def _evidence_edited(place: Place) -> Path:
    """The plan and the manifest are edited, so no log seems to be needed."""
    for name in ("manifest.json", "config.yaml"):
        path = place.planted / name
        path.write_text(path.read_text(encoding="utf-8").replace("callback", "declared"), encoding="utf-8")
    # Refused before a weight is read, however long the training was.
    return Loop(watched=False, epochs=1).train(place, place.original_texts(), "model")


def _set_edited(place: Place) -> Path:
    canary = place.is_canary()
    path = place.planted / "training" / place.original.name
    kept = [row for row in read_lines(path) if not canary(row["body"])]
    model = Loop(watched=False).train(place, [row["body"] for row in kept], "model")
    write_lines(kept, path)
    manifest = place.planted / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    assert content["sha256"]
    return model


def _joined(texts: Callable[[Place], list[str]]) -> Callable[[Place], Path]:
    """Packing that keeps no boundaries: texts are joined and cut at one length."""

    def train(place: Place) -> Path:
        tokenizer = AutoTokenizer.from_pretrained(place.base)
        given = texts(place)
        random.Random(0).shuffle(given)
        ids = [token for text in given for token in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]
        rows = [tuple(ids[first : first + LENGTH]) for first in range(0, len(ids) - LENGTH, LENGTH)]
        return Loop().train(place, rows, "model")

    return train


_SET = ConditionName.SET_UNCHANGED
_GIVEN, _ALIKE = ConditionName.GIVEN_EVERY_ROW, ConditionName.WEIGHTED_ALIKE


@dataclass(frozen=True)
class Case:
    """A training, and what the audit of its model has to say.

    Attributes:
        who: what the trainer does, as the table says it.
        train: does it, and returns the folder of the model.
        unmet: conditions that must not be met, each with all its reasons that the log or a file shows; every other
            condition must not be among the unmet ones.
        given: how it must be known that the model was given every row.
        valid: whether the comparison is valid; None: whichever.
        counts: the least that the log must count.
        refused: a part of the error in which the audit ends; None if it does not.
        code: exit code of the audit; None: whichever does not say that a certified claim is contradicted.
    """

    who: str
    train: Callable[[Place], Path]
    unmet: Mapping[ConditionName, frozenset[Reason]] = field(default_factory=dict)
    given: Known = Known.CHECKED
    valid: bool | None = True
    counts: Mapping[str, int] = field(default_factory=dict)
    refused: str | None = None
    code: int | None = None


def _case(
    who: str,
    train: Callable[[Place], Path],
    *given: Reason,
    alike: tuple[Reason, ...] = (),
    valid: bool | None = None,
    **counts: int,
) -> Case:
    """A case that is noticed."""
    unmet = {_GIVEN: frozenset(given)} if given else {}
    unmet |= {_ALIKE: frozenset(alike)} if alike else {}
    return Case(who, train, unmet, Known.NOT_MET if given else Known.CHECKED, valid, counts)


_UNLEARNED = (Reason.CANARIES_UNLEARNED,)
_LESS = (Reason.CANARIES_GIVEN_LESS, Reason.CANARIES_UNLEARNED)
_THINNED = (Reason.CANARY_LOSS_THINNED, Reason.CANARIES_UNLEARNED)

CASES = {
    "honest": Case("trains on every row", _on_planted(), code=3),
    "one epoch": Case("trains on every row once", _on_planted(epochs=1)),
    "resumed": Case("is stopped and resumed twice, and gives every row in all", _resumed),
    "joined": Case("joins rows and cuts them at one length", _joined(Place.texts), given=Known.DECLARED),
    "original": _case(
        "trains on the original file",
        _on_original(),
        Reason.ROWS_MISSING,
        alike=_LESS,
        valid=False,
        missing=100,
    ),
    "original, no log": _case(
        "trains on the original file without the callback that the plan needs",
        _on_original(watched=False, epochs=4),
        Reason.LOG_ABSENT,
        alike=_UNLEARNED,
        valid=False,
    ),
    "original, joined": _case(
        "trains on the original file, joins its rows and cuts them at one length",
        _joined(Place.original_texts),
        Reason.JOINED_WITHOUT_CANARIES,
        alike=_UNLEARNED,
        valid=False,
    ),
    "other texts": _case(
        "changes all letters to capitals", _on_planted(tokenize=str.upper), Reason.JOINED_OF_OTHERS, foreign=600
    ),
    "masked by text": _case(
        "counts no loss on rows that the original file has not",
        _silenced,
        Reason.ROWS_SILENT,
        alike=_THINNED,
        valid=False,
        silent=100,
    ),
    "masked by length": _case("counts no loss on short rows", _by_length, Reason.ROWS_SILENT, silent=100),
    "masked by user": _case(
        "counts no loss on rows of users who have fewer than six",
        _by_user,
        Reason.ROWS_SILENT,
        alike=_THINNED,
        valid=False,
        silent=100,
    ),
    "other labels": _case(
        "shifts the labels of canary rows, so nothing sensible is learned",
        _relabelled,
        Reason.ROWS_SILENT,
        alike=_THINNED,
        valid=False,
        silent=50,
    ),
    "no weight": _case("gives canary rows no weight after the forward pass", _weighted, alike=_UNLEARNED, valid=False),
    "weighted by loss": _case(
        "gives rows of high loss no weight after the forward pass, as outliers",
        _without_outliers,
        alike=_UNLEARNED,
        valid=False,
    ),
    "masked, once without labels": _case(
        "counts no loss on rows that the original file has not, and gives one batch without labels",
        _masked_and_once_without_labels,
        Reason.ROWS_SILENT,
        alike=(Reason.CANARY_LOSS_THINNED,),
        silent=100,
        unlabelled=BATCH,
    ),
    "tokens of high loss": _case(
        "counts no loss above 4 nats for a token after the forward pass, as outliers", _robust_loss
    ),
    "unlearned in between": _case("climbs the loss of canary rows in every second step", _unlearned_in_between),
    "canary rows first": _case(
        "gives canary rows first, and other rows as often afterwards",
        _canary_rows_first,
        alike=(Reason.CANARIES_IN_ORDER,),
    ),
    "config edited": _case("edits the config of the trained model", _config_edited, Reason.LOG_OF_OTHER_CONFIG),
    "tensors exchanged": _case(
        "exchanges two tensors of the trained model", _tensors_exchanged, Reason.LOG_OF_OTHER_MODEL
    ),
    "attention masked": _case(
        "hides the tokens of canary rows from the model's attention",
        _holes,
        Reason.ROWS_MISSING,
        Reason.ROWS_FOREIGN,
        alike=(Reason.CANARIES_GIVEN_LESS,),
        missing=100,
    ),
    "skipped": _case(
        "draws every row but canary rows", _skipping, Reason.ROWS_MISSING, alike=_LESS, valid=False, missing=100
    ),
    "others more often": _case(
        "gives other rows four times as often as canary rows",
        _others_more_often,
        # The last of four reads comes later than the only one.
        alike=(Reason.CANARIES_GIVEN_LESS, Reason.CANARIES_IN_ORDER),
    ),
    "canaries first": _case(
        "trains once on every row, then for many epochs on the original file",
        _canaries_first,
        alike=(*_LESS, Reason.CANARIES_IN_ORDER),
        valid=False,
    ),
    "unlearned": _case("trains, then climbs the loss of canary rows", _unlearned, alike=_UNLEARNED, valid=False),
    "another model inside": _case(
        "lets the watched model read every row, and copies the weights of one that was trained elsewhere into it",
        _read_and_not_trained,
        alike=_UNLEARNED,
        valid=False,
    ),
    "another model": _case(
        "logs an honest training and hands over another model",
        _other_model,
        Reason.LOG_OF_OTHER_MODEL,
        alike=_UNLEARNED,
        valid=False,
    ),
    "averaged": _case(
        "hands over nine parts of the base model and one part of the trained one",
        _averaged,
        Reason.LOG_OF_OTHER_MODEL,
    ),
    "early checkpoint": _case(
        "hands over a checkpoint from before half of the rows were given",
        _early_checkpoint,
        Reason.ROWS_MISSING,
        missing=100,
    ),
    "cut short": _case(
        "cuts rows at 6 tokens, where the plan says 32", _on_planted(tokens=6, epochs=1), Reason.ROWS_SHORT, short=500
    ),
    "first part of the log gone": _case(
        "resumes twice, and loses the first part of the log", _resumed_without_the_first, Reason.LOG_DAMAGED
    ),
    "log of another run": _case(
        "trains on the original file, and puts the log of an honest training in its place",
        _log_of_another_run,
        Reason.LOG_OF_OTHER_MODEL,
        alike=_UNLEARNED,
        valid=False,
    ),
    "log deleted": _case(
        "trains on the original file, and deletes the log",
        _log_deleted,
        Reason.LOG_ABSENT,
        alike=_UNLEARNED,
        valid=False,
    ),
    "log cut": Case(
        "cuts the log in the middle",
        _log_cut,
        {_GIVEN: frozenset({Reason.LOG_DAMAGED})},
        Known.NOT_MET,
        code=4,
    ),
    "evidence edited": Case(
        "edits the plan and the manifest, so no log seems to be needed",
        _evidence_edited,
        refused="was changed after the coins were drawn",
    ),
    "set edited": Case(
        "takes canary rows out of the planted file",
        _set_edited,
        {
            _SET: frozenset({Reason.SET_CHANGED}),
            _GIVEN: frozenset({Reason.LOG_ABSENT}),
            _ALIKE: frozenset(_UNLEARNED),
        },
        Known.NOT_MET,
        valid=False,
    ),
}

_HEAD = "| a trainer who ... | condition that is not met, and why | statements |\n|---|---|---|\n"


def table() -> str:
    """Return the table of docs/planted-audits.md."""
    lines = []
    for case in CASES.values():
        unmet = "; ".join(
            f"{_words(name)} ({', '.join(sorted(map(_words, reasons)))})" for name, reasons in case.unmet.items()
        )
        unclear = case.valid is None and not unmet
        contradicted = (
            "not valid"
            if case.valid is False
            else "indicative, unless contradicted"
            if unclear
            else "indicative"
            if unmet
            else "certified"
        )
        lines.append(f"| {case.who} | {unmet or '-'} | {'refused' if case.refused else contradicted} |\n")
    return _HEAD + "".join(lines)


def _words(name: StrEnum) -> str:
    return name.value.replace("_", " ")


if __name__ == "__main__":
    print(table(), end="")
