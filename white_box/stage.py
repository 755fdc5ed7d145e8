"""The stage of a white-box audit: a tiny model, people with texts, and two kinds of canaries.

Why the audit is tight: a sequence of n tokens has positions 0 .. n - 1, so the position-embedding rows above the
longest sequence have gradient exactly zero for every real user. Only canaries and noise change those coordinates. A
canary along one of them sees, in units of the sensitivity, N(Binom(G, q), s^2) in each step if it is in and N(0, s^2)
if it is out. This is exactly the dominating pair of Charles et al. (2024), Theorem 1, without interference from other
users or canaries, so nothing has to be subtracted. To the trainer, the rows are ordinary parameters: the code that
clips, noises and updates every other tensor also handles them. Random directions over all parameters (Andrew et al.
2024) interfere with real users and with each other. This costs tightness, but never validity.

The writers differ as much as writers in a corpus. A text is a list of token ids. Writers differ in the number and
length of their records. Two writers have the same texts, two have nearly the same name, one repeats a record, one is
brief, and two write in tokens that nobody else uses. A text canary repeats one such token, so hardly anybody else
changes the embedding row of this token. No text depends on a key.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

from heldin.base.coins import fair_coin, keyed_digest
from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.corpus.document import Document
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate_user
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.batches import encode
from heldin.finetune.sampled_units import SampledUnit
from heldin.finetune.units import PrivateRecords, PrivateTraining, plan_private_training
from heldin.models.devices import seed_generators
from heldin.models.loading import LanguageModel
from heldin.models.model_config import TinyModel
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.models.tokens import Tokens
from heldin.white_box.canaries import OVERSIZE, POSITIONS, Canaries, Directions, Index

Architecture = Literal["gpt-neo", "gpt2"]


@dataclass(frozen=True)
class StageModel:
    """The model on which a trainer is audited. Both architectures have the same names for embeddings and positions.

    Attributes:
        architecture: "gpt-neo", or "gpt2", whose layers are Conv1D and whose attention is one product.
        tied: whether the head is the embedding table, as in the released models; False: the head is a copy that is
            trained separately.
    """

    architecture: Architecture = "gpt-neo"
    tied: bool = True

    def __str__(self) -> str:
        """Return the name of the model as a finding gives it."""
        name = {"gpt-neo": "GPT-Neo", "gpt2": "GPT-2"}[self.architecture]
        return f"{name} with {'tied embeddings' if self.tied else 'a head of its own'}"

    def new(self, shape: TinyModel, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
        """Return the model before training, always the same and without dropout. An untied head still equals the
        table."""
        if self.architecture == "gpt-neo":
            return new_tiny_model(shape, tokenizer, seed=0)
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=shape.context,
            n_embd=shape.hidden,
            n_layer=shape.layers,
            n_head=shape.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        state = torch.get_rng_state()
        seed_generators(0, torch.device("cpu"))
        model = GPT2LMHeadModel(config)
        torch.set_rng_state(state)
        return model


TIED_GPT_NEO = StageModel()


def stage_model(architecture: str, *, tied: bool = True) -> StageModel:
    """Return the model for an option's value. Raises InputError with a list of all choices for any other value."""
    for name in get_args(Architecture):
        if architecture == name:
            return StageModel(name, tied)
    raise InputError(
        f"'{architecture}' is not a model of the white-box audit: choose from {', '.join(get_args(Architecture))}"
    )


def untie(model: PreTrainedModel) -> None:
    """Give a tied model a separate head, which is a copy of its embedding table."""
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.transformer.wte.weight.detach().clone())


Text = list[int]

LONGEST = 24  # maximum tokens of a record after its start token
VOCABULARY = 300  # tokens
SICK = "somebody whose gradient is not finite"
_CANARY_TOKENS = 6  # how often a record of a text canary repeats its token
_MAILS = (1, 2, 3, 6, 2)  # of the writers of ordinary mail
_LENGTHS = (24, 9, 15, 5, 20, 12)  # of their records, in turn
_LOUD_TOKENS = 12  # tokens of one writer that nobody else uses
# of the model before training: as made; with a gradient that overflows for one text; with one text that is as likely as
# this number says (``Stage.model``)
Weights = Literal["as made", "sick"] | float

TEXT_CANARIES = 100  # maximum per training
EMBEDDING = "transformer.wte.weight"  # of GPT-Neo and of GPT-2
_HIDDEN, _HEADS, _LAYERS = 16, 2, 1
_ROOM = 50  # coordinates for each random direction, half of which are in: docs/theory.md#gradient-canaries
_LARGEST_CONTEXT = 8_192  # GPT-Neo keeps a mask of context x context
_PRIOR, _SHIFT = 10.0, 1.0  # a rare token's logit is lower by their product
_OVERFLOWING = 3e38  # finite in float32, and its sum over a row is not
SURE = 3.0  # weights under which the first text canary's texts have a loss near 0


@dataclass(frozen=True)
class Person:
    """A user with a name and records. Records are lists of token ids, each with its start token."""

    name: str
    records: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TrainedPeople:
    """All people in the training, and the tokens that only some of them use.

    Attributes:
        writers: people whom every training includes.
        canaries: text canaries; a coin includes each of them.
        sick: a person whose gradient is made not finite, to test how the trainer handles it.
        sick_token: the token that makes this gradient not finite.
        own_tokens: the token of each text canary.
        rare: every token that no ordinary mail contains.
    """

    tokenizer: PreTrainedTokenizerFast
    writers: tuple[Person, ...]
    canaries: tuple[Person, ...]
    sick: Person
    sick_token: int
    own_tokens: tuple[int, ...]
    rare: tuple[int, ...]

    @property
    def everybody(self) -> tuple[Person, ...]:
        """Writers, text canaries, and the sick person."""
        return (*self.writers, *self.canaries, self.sick)


def gather(canaries: int, members: int, seed: int) -> TrainedPeople:
    """Return writers, and at most ``canaries`` text canaries with ``members`` records each. The public seed determines
    all."""
    spec = SyntheticCorpus(users=len(_MAILS) + 4, mean_records=max(_MAILS), min_records=max(_MAILS), seed=seed)
    mails = [list(generate_user(spec, user)) for user in range(spec.users)]
    tokenizer = train_tokenizer([mail.text for mailbox in mails for mail in mailbox], VOCABULARY)
    encoded = (encode(tokenizer, [Document.of(mail.text) for mail in mailbox], LONGEST) for mailbox in mails)
    texts = [[list(tokens.ids) for tokens in of_mailbox] for of_mailbox in encoded]
    start = texts[0][0][0]
    used = {token for records in texts for text in records for token in text}
    rare = [token for token in range(len(tokenizer)) if token not in used and token != start]
    ordinary = [
        _person(mailbox[0].user, [texts[i][j][: _LENGTHS[j % len(_LENGTHS)] + 1] for j in range(_MAILS[i])])
        for i, mailbox in enumerate(mails[: len(_MAILS)])
    ]
    others = texts[len(_MAILS) :]
    # The first for the writers "loud" and "echo" and the sick person, the others for the text canaries, one each.
    special, own = rare[: _LOUD_TOKENS + 2], rare[_LOUD_TOKENS + 2 :]
    writers = (*ordinary, *_unlike(ordinary[1].name, others, start, special))
    sick = _person(SICK, [[start, special[-1], *others[3][0][1:8]]])
    saying = [
        _person(f"text canary {j}", [[start] + [token] * _CANARY_TOKENS] * members)
        for j, token in enumerate(own[:canaries])
    ]
    return TrainedPeople(tokenizer, writers, tuple(saying), sick, special[-1], tuple(own[: len(saying)]), tuple(rare))


def _unlike(name: str, texts: list[list[Text]], start: int, special: list[int]) -> list[Person]:
    """Return writers, each of whom differs from the other writers in one respect.

    Args:
        name: name of an ordinary writer; nearly equal names are made from it.
        texts: texts of people who are not writers themselves.
        special: tokens that nobody else uses.
    """
    first, second, third, fourth = texts[:4]
    shared = [first[0], first[1][:13]]
    return [
        _person("one text, two names", shared),
        _person("two names, one text", shared),
        _person(name.upper(), [second[0]]),
        _person(f"{name}.uk", [second[1][:11]]),
        _person("one record thrice", [third[0][:17]] * 3),
        _person("one word", [[start, third[1][1]]]),
        _person("loud", [[start, *special[:_LOUD_TOKENS]]]),
        _person("echo", [[start] + [special[_LOUD_TOKENS]] * (LONGEST - 1), fourth[1][:7]]),
    ]


def _person(name: str, records: list[Text]) -> Person:
    return Person(name, tuple(tuple(text) for text in records))


@dataclass(frozen=True)
class Stage:
    """The public parts of an audit.

    Attributes:
        people: writers and text canaries.
        sequences: token ids of all records, by row.
        records: ids, users, lengths and losses of the same rows.
        kind: the audited model.
    """

    mechanism: Mechanism
    people: TrainedPeople
    sequences: list[Tokens]
    records: PrivateRecords
    canaries: Canaries
    shape: TinyModel
    kind: StageModel = TIED_GPT_NEO

    @property
    def clip_norm(self) -> float:
        """The stated clip norm C."""
        return clip_norm_of(self.mechanism)

    @property
    def names_of_writers(self) -> tuple[str, ...]:
        """Names of the people whom every training includes."""
        return tuple(person.name for person in self.people.writers)

    @property
    def all_records(self) -> Mechanism:
        """The mechanism with a group size that fits all records of a user, so a user's contribution never changes."""
        if self.mechanism.sampled != "user":
            return self.mechanism
        most = max(len(person.records) for person in self.people.everybody)
        return Mechanism(**{**dict(self.mechanism), "group_size": max(most, self.mechanism.group_size)})

    def model(self, weights: Weights = "as made") -> LanguageModel:
        """Return the model before training, always the same. Rare words are e^-10 times as likely as other words.

        Args:
            weights: "sick" adds a separate head and an embedding row that overflows, so only the sick person's
                text has a gradient that is not finite. A number raises the logit of the first text canary's token by 10
                times the number: its texts have a high loss for 0, and hardly any loss for 3 (``SURE``).
        """
        sick = weights == "sick"
        model = self.kind.new(self.shape, self.people.tokenizer)
        along = torch.zeros(self.shape.hidden)
        along[0] = 1.0
        with torch.no_grad():
            model.transformer.ln_f.bias += _PRIOR * along
            model.transformer.wte.weight[list(self.people.rare)] -= _SHIFT * along
            if isinstance(weights, float):
                model.transformer.wte.weight[self.people.own_tokens[0]] += weights * along
            if sick or not self.kind.tied:
                # Tied, a sick row would also be the token's output weight, and everybody's logits would overflow.
                untie(model)
            if sick:
                model.transformer.wte.weight[self.people.sick_token] = _OVERFLOWING
        name = f"white-box audit ({weights})"
        return LanguageModel(model, self.people.tokenizer, name, text_sha256(name, repr(self.shape)))

    def coins(self, key: bytes) -> NDArray[np.bool_]:
        """Draw membership with the secret ``key``: an independent fair coin for each gradient canary, shape (m,)."""
        return np.array([fair_coin(key, "white-box coin", f"canary {j}") for j in range(self.canaries.count)])

    def text_coins(self, key: bytes) -> NDArray[np.bool_]:
        """Draw membership of the text canaries with the secret ``key``, shape (texts,)."""
        return np.array([fair_coin(key, "white-box coin", person.name) for person in self.people.canaries])

    def training(
        self, key: bytes, included: NDArray[np.bool_], text_included: NDArray[np.bool_] | None = None
    ) -> PrivateTraining:
        """Return the run with the writers and the included canaries. A canary has G units if users' examples are
        sampled.

        Args:
            key: secret key. The run's own key is derived from it, so coins and noise are independent.
            included: whether each gradient canary is included, shape (m,).
            text_included: whether each text canary is included, shape (texts,); None: no text canary is.
        """
        nobody = np.zeros(len(self.people.canaries), dtype=np.bool_)
        taking_part = nobody if text_included is None else text_included
        names = list(self.names_of_writers)
        names += [p.name for p, is_in in zip(self.people.canaries, taking_part, strict=True) if is_in]
        planned = self.planned(keyed_digest(key, "white-box run", ""), names)
        return replace(planned, units=(*planned.units, *self.gradient_units(np.flatnonzero(included).tolist())))

    def planned(self, run_key: bytes, names: Collection[str]) -> PrivateTraining:
        """Return the run of the people with these names, with its own key and without gradient canaries."""
        chunk = LONGEST if self.mechanism.record_selection == "random_chunk" else None
        planned = plan_private_training(self.mechanism, run_key, self.records, NoiseGenerator.PHILOX, chunk=chunk)
        wanted = set(names)
        # After planning: every unit's name, pool and coin is what it is with everybody there.
        units = tuple(unit for unit in planned.units if self.records.users[unit.rows[0]] in wanted)
        return replace(planned, units=units, canaries=self.canaries)

    def gradient_units(self, numbers: Sequence[int]) -> list[SampledUnit]:
        """Return the units of gradient canaries: one unit per canary, or G units."""
        members = range(self.mechanism.members)
        # A name, and so a coin, for each member: a canary is drawn Binom(G, q) times a step, as the accountant has it.
        return [SampledUnit(f"canary {j} example {i}", (), canary=int(j)) for j in numbers for i in members]

    def with_places(self, number: int) -> "Stage":
        """Return the stage with at most ``number`` gradient canaries, each on its own quiet coordinate."""
        places = self.canaries.quiet[:number]
        return replace(self, canaries=replace(self.canaries, coordinates=places, count=places.size))

    def sick_unit(self) -> SampledUnit:
        """Return the unit whose gradient is not finite under the sick model."""
        return SampledUnit(SICK, (self.records.users.index(SICK),))


def set_stage(
    mechanism: Mechanism,
    canaries: int,
    *,
    directions: Directions = "coordinate",
    quiet: int = 2000,
    seed: int = 0,
    kind: StageModel = TIED_GPT_NEO,
) -> Stage:
    """Prepare an audit of ``mechanism``: a model with room for the canaries, the writers, and the text canaries.

    Args:
        mechanism: the stated mechanism, which must be Poisson-sampled and have noise and a guarantee.
        canaries: number of gradient canaries m, at least two; a coin includes each of them.
        directions: one coordinate per canary (tight), or random directions over all parameters.
        quiet: number of coordinates without canaries, for the noise check.
        kind: model on which the trainer is audited.

    Raises:
        InputError: the mechanism cannot be tested, or the tiny model is too small for this many canaries.
    """
    check_auditable(mechanism)
    if canaries < 2:
        raise InputError(f"{canaries} canaries are too few for a white-box audit: give at least two")
    own = canaries if directions == "coordinate" else 0
    context = _context(canaries, own, quiet)
    people = gather(min(canaries, TEXT_CANARIES), mechanism.members, seed)
    rows = [(person.name, i, text) for person in people.everybody for i, text in enumerate(person.records)]
    records = PrivateRecords(
        [f"{name} record {i}" for name, i, _ in rows],
        [name for name, _, _ in rows],
        [len(text) for _, _, text in rows],
        [0.0] * len(rows),
    )
    shape = TinyModel(VOCABULARY, context, _HIDDEN, _LAYERS, _HEADS, LONGEST)
    model = kind.new(shape, people.tokenizer)
    if not kind.tied:
        untie(model)
    shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    first = sum(p.numel() for p in list(model.parameters())[: list(shapes).index(POSITIONS)])
    # Positions that a text may reach: the oracle reads it whole, the trainer without its last token.
    read = max(records.lengths)
    free = first + read * _HIDDEN + np.arange((context - read) * _HIDDEN)  # coordinates without a text's gradient
    norm = OVERSIZE * clip_norm_of(mechanism)
    canary = Canaries(canaries, norm, shapes, free[:own] if own else None, free[own : own + quiet], seed)
    return Stage(mechanism, people, [Tokens(text) for _, _, text in rows], records, canary, shape, kind)


def check_auditable(mechanism: Mechanism) -> None:
    """Raise InputError unless the mechanism is Poisson-sampled, clips every unit and has a guarantee to test."""
    if mechanism.sampler.groups > 1 and mechanism.sampler.rate == 1.0:
        raise InputError(
            "the white-box audit reads groups from coins, but this plan draws no coin, because bands x cohort is"
            " the population. Use a smaller cohort, or fewer bands"
        )
    if not (mechanism.sampler.by_coins or mechanism.level.method == "banded"):
        raise InputError(
            f"the white-box audit needs Poisson sampling, but this plan's sampler is {mechanism.sampler.kind}, and"
            " its canary users would replace other users. Choose a plan with Poisson sampling"
        )
    features = {
        "two-level sampling": mechanism.two_level,
        "local updates": mechanism.local,
        "a clip norm that changes": mechanism.clip_quantile,
    }
    if feature := next((name for name, part in features.items() if part is not None), None):
        raise InputError(
            "the white-box audit follows units that one coin each draws and one norm clips, but this plan has"
            f" {feature}. Audit it by independent training runs (heldin retrain)"
        )
    if not mechanism.protects or mechanism.reasons():
        raise InputError(f"the white-box audit needs a guarantee to test: {mechanism.guarantee().label}")


def own_rows(stage: Stage) -> Index:
    """Return the coordinates of the text canaries' embedding rows among all trainable parameters, shape (texts,
    hidden)."""
    tokens = np.array(stage.people.own_tokens, dtype=np.int64)
    return stage.canaries.offsets[EMBEDDING] + tokens[:, None] * _HIDDEN + np.arange(_HIDDEN)


def _context(canaries: int, own: int, quiet: int) -> int:
    """Return the number of positions that the model needs for texts, canaries and quiet coordinates."""
    room = own or _ROOM * canaries  # random directions interfere: included canaries / d of the variance
    context = LONGEST + 1 + -(-(room + quiet) // _HIDDEN)
    if context > _LARGEST_CONTEXT:
        most = ((_LARGEST_CONTEXT - LONGEST - 1) * _HIDDEN - quiet) // (1 if own else _ROOM)
        raise InputError(f"{canaries} canaries do not fit into one training: give at most {most}, or use more seeds")
    return context


def clip_norm_of(mechanism: Mechanism) -> float:
    """Return the clip norm C of a mechanism that clips every unit."""
    assert mechanism.clip.unit_norm is not None
    return mechanism.clip.unit_norm
