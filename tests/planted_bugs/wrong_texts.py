"""Wrong trainers that treat gradient canaries right and texts wrong, or units that look unlike each other unequally."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from heldin.finetune.units import PrivateTraining, SampledUnit
from tests.planted_bugs.plain import (
    Clip,
    Dense,
    Plain,
    Records,
    Sparse,
    clipped_by,
    computed_text_gradient,
    contribution,
    norm_of,
    raw_gradient,
    scaled,
    taken,
    text_gradient,
    to_norm,
)

POSITIONS, TIED = "transformer.wpe.weight", "transformer.wte.weight"  # of GPT-Neo
_BUDGET = 8  # records of a step
_PIECE = 12  # tokens


def clipping_texts(clip: Clip) -> Plain:
    """Canaries are clipped as stated."""
    return Plain(
        contributions=clipped_by(
            lambda unit, raw, norm: (to_norm if unit.canary is not None else clip)(unit, raw, norm)
        )
    )


def unclipped_texts() -> Plain:
    """The clip runs over hooks' gradients only, and texts come through autograd."""
    return clipping_texts(lambda unit, raw, norm: raw)


def per_tensor() -> Plain:
    """Each tensor to the clip norm, for a plan that says the whole gradient."""
    return Plain(
        contributions=clipped_by(lambda _, raw, norm: {n: scaled({n: g}, norm, [g])[n] for n, g in raw.items()})
    )


def without_positions() -> Plain:
    """The norm is of everything but the position embeddings, whose hooks see one row for the whole batch."""
    return Plain(
        contributions=clipped_by(
            lambda _, raw, norm: scaled(raw, norm, [g for name, g in raw.items() if name != POSITIONS])
        )
    )


def one_use_of_tied() -> Plain:
    """The norm counts the embedding's use as look-up table; the gradient that is summed has its use as head too."""

    def contributions(model, training, drawn, number, sequences):
        found, norm = [], training.mechanism.clip.norm
        for unit in drawn:
            raw = raw_gradient(model, training, unit, number, sequences)
            if unit.canary is not None:
                found.append(to_norm(unit, raw, norm))
                continue
            head = _of_head(model, contribution(training, unit, number, sequences))
            found.append(scaled(raw, norm, [*(g for n, g in raw.items() if n != TIED), raw[TIED] - head]))
        return found

    return Plain(contributions=contributions)


def batch_mean() -> Plain:
    """A unit's gradient is that of the mean loss over all the tokens of the batch."""

    def gradients(model: PreTrainedModel, people: Sequence[Records]) -> list[Dense]:
        tokens = [sum(len(r) - 1 for r in records) for records in people]
        share = [of_unit / max(1, sum(tokens)) for of_unit in tokens]
        found = [text_gradient(model, records) for records in people]
        return [{n: g * part for n, g in raw.items()} for raw, part in zip(found, share, strict=True)]

    return _texts_by(gradients)


def texts_at_twice_the_norm() -> Plain:
    """Clipped at 2 C: C is taken for the radius of replace adjacency."""
    return clipping_texts(lambda unit, raw, norm: to_norm(unit, raw, 2.0 * norm))


def matrices_in_the_norm() -> Plain:
    """The norm is of the group that has weight decay: biases and LayerNorm are in the other."""
    return clipping_texts(lambda unit, raw, norm: scaled(raw, norm, [g for g in raw.values() if g.dim() > 1]))


def normalised_texts() -> Plain:
    """Divided by the norm, whatever it is: small gradients are scaled up."""

    def clip(unit: SampledUnit, raw: Sparse, norm: float) -> Sparse:
        size = norm_of(raw.values())
        return {name: g * (norm / size if size > 0 else 0.0) for name, g in raw.items()}

    return clipping_texts(clip)


def padding_counted() -> Plain:
    """labels = input_ids of a padded batch, padding not masked: a unit's loss depends on the longest text drawn."""
    return _texts_by(_padded)


def batch_mean_subtracted() -> Plain:
    """Units' gradients are centred before they are clipped, as batch normalisation would."""

    def gradients(model: PreTrainedModel, people: Sequence[Records]) -> list[Dense]:
        raw = [text_gradient(model, records) for records in people]
        mean = {name: sum(g[name] for g in raw) / len(raw) for name in raw[0]} if raw else {}
        return [{name: t - 0.1 * mean[name] for name, t in g.items()} for g in raw]

    return _texts_by(gradients)


def shared_budget() -> Plain:
    """A step has room for so many records, which the users drawn share out."""

    def gradients(model: PreTrainedModel, people: Sequence[Records]) -> list[Dense]:
        each = max(1, _BUDGET // max(1, len(people)))
        return [text_gradient(model, records[:each]) for records in people]

    return _texts_by(gradients)


def once_each_text() -> Plain:
    """Texts that stand twice in the batch are trained on once."""

    def gradients(model: PreTrainedModel, people: Sequence[Records]) -> list[Dense]:
        seen: set[tuple[int, ...]] = set()
        found = []
        for records in people:
            fresh = [r for r in records if tuple(r) not in seen]
            seen.update(map(tuple, records))
            found.append(text_gradient(model, fresh))
        return found

    return _texts_by(gradients)


def long_texts_in_pieces() -> Plain:
    """What is longer than the context becomes several examples, each clipped."""

    def contributions(model, training, drawn, number, sequences):
        found = []
        for unit in drawn:
            if unit.canary is not None:
                pieces = [raw_gradient(model, training, unit, number, sequences)]
            else:
                records = contribution(training, unit, number, sequences)
                long = [r for r in records if len(r) > _PIECE + 1]
                pieces = [text_gradient(model, [r for r in records if len(r) <= _PIECE + 1])]
                pieces += [
                    text_gradient(model, [r[i : i + _PIECE + 1]]) for r in long for i in range(0, len(r) - 1, _PIECE)
                ]
            found += [to_norm(unit, piece, training.mechanism.clip.norm) for piece in pieces]
        return found

    return Plain(contributions=contributions)


def step_lost_to_one_unit() -> Plain:
    """As a gradient scaler does: where anything is not finite, the whole step's sum is thrown away."""

    def contributions(model, training, drawn, number, sequences):
        raw = [raw_gradient(model, training, unit, number, sequences) for unit in drawn]
        if not all(math.isfinite(norm_of(g.values())) for g in raw):
            return []
        return [to_norm(u, g, training.mechanism.clip.norm) for u, g in zip(drawn, raw, strict=True)]

    return Plain(contributions=contributions)


def large_units_split() -> Plain:
    """A unit of more records than fit into a pass is cut into passes, and each is clipped."""

    def contributions(model, training, drawn, number, sequences):
        found, size = [], training.micro_records
        for unit in drawn:
            if unit.canary is not None:
                pieces = [raw_gradient(model, training, unit, number, sequences)]
            else:
                records = contribution(training, unit, number, sequences)
                pieces = [text_gradient(model, records[i : i + size]) for i in range(0, len(records), size)]
            found += [to_norm(unit, piece, training.mechanism.clip.norm) for piece in pieces]
        return found

    return Plain(contributions=contributions)


def neighbours_record() -> Plain:
    """rows[start : end + 1]: the first record of the next user in the table goes along."""

    def contributions(model, training, drawn, number, sequences):
        texts = [unit for unit in training.units if unit.canary is None]
        following = {a.name: b for a, b in itertools.pairwise(texts)}
        found = []
        for unit in drawn:
            raw = raw_gradient(model, training, unit, number, sequences)
            if unit.name in following:
                records = contribution(training, unit, number, sequences)
                more = contribution(training, following[unit.name], number, sequences)[:1]
                raw = text_gradient(model, [*records, *more])
            found.append(to_norm(unit, raw, training.mechanism.clip.norm))
        return found

    return Plain(contributions=contributions)


def last_pass_dropped() -> Plain:
    """drop_last=True: the last pass of a step is left out where it is not full, if there is another."""

    def contributions(model, training, drawn, number, sequences):
        texts = [unit for unit in drawn if unit.canary is None]
        whole = len(texts) - len(texts) % training.micro_records if len(texts) > training.micro_records else len(texts)
        kept = {unit.name for unit in texts[:whole]}
        left = [unit for unit in drawn if unit.canary is not None or unit.name in kept]
        return clipped_by(to_norm)(model, training, left, number, sequences)

    return Plain(contributions=contributions)


def loud_units_left_out() -> Plain:
    """Outliers, with a loss above 1.5 times the cohort's median, are taken for noise in the data."""

    def gradients(model: PreTrainedModel, people: Sequence[Records]) -> list[Dense]:
        losses = [_loss(model, records) for records in people]
        limit = 1.5 * sorted(losses)[len(losses) // 2] if losses else 0.0
        return [text_gradient(model, r if loss <= limit else []) for r, loss in zip(people, losses, strict=True)]

    return _texts_by(gradients)


def not_finite_summed() -> Plain:
    """clip_grad_norm_ multiplies a gradient that is not finite by min(1, C / norm), which is not finite either."""
    return Plain(contributions=clipped_by(lambda unit, raw, norm: scaled(raw, norm, raw.values())))


def _texts_by(gradients: Callable[[PreTrainedModel, Sequence[Records]], Sequence[Dense]]) -> Plain:
    """Texts' gradients by a function of all that were drawn, canaries' as stated; each clipped as stated."""

    def contributions(
        model: PreTrainedModel, training: PrivateTraining, drawn: Sequence[SampledUnit], number: int, sequences: Records
    ) -> list[Sparse]:
        texts = [unit for unit in drawn if unit.canary is None]
        others = [unit for unit in drawn if unit.canary is not None]
        raw: list[Sparse] = list(gradients(model, [contribution(training, u, number, sequences) for u in texts]))
        raw += [raw_gradient(model, training, unit, number, sequences) for unit in others]
        units = [*texts, *others]
        return [to_norm(u, g, training.mechanism.clip.norm) for u, g in zip(units, raw, strict=True)]

    return Plain(contributions=contributions)


def _of_head(model: PreTrainedModel, records: Records) -> torch.Tensor:
    """The gradient of the tied embedding without what comes back through look-ups."""
    hook = model.get_input_embeddings().register_forward_hook(lambda layer, args, output: output.detach())
    found = computed_text_gradient(model, records)[TIED]
    hook.remove()
    return found


def _padded(model: PreTrainedModel, people: Sequence[Records]) -> list[Dense]:
    longest = max((len(r) for records in people for r in records), default=0)
    found = []
    for records in people:
        model.zero_grad(set_to_none=True)
        for r in records:
            ids = torch.tensor([[*r, *[r[0]] * (longest - len(r))]])
            logits = model(input_ids=ids[:, :-1]).logits[0]
            (F.cross_entropy(logits, ids[0, 1:]) / len(records)).backward()
        found.append(taken(model))
    return found


def _loss(model: PreTrainedModel, records: Records) -> float:
    with torch.no_grad():
        each = [float(model(input_ids=torch.tensor([list(r)]), labels=torch.tensor([list(r)])).loss) for r in records]
    return sum(each) / max(1, len(each))
