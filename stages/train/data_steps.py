"""What happens to a run's records before training, and what its guarantee assumes: as its plan states both."""

from heldin.canaries.config import SubstringCanaries, UnseenTokenCanaries
from heldin.corpus.config import PresetCorpus
from heldin.corpus.presets.catalogue import preset_named
from heldin.corpus.split import Audited, SplitRule
from heldin.defenses.choices import DataStep
from heldin.defenses.config import EntityDefense, UedpDefense, UserEntityDefense
from heldin.defenses.texts.data_side import DeIdentify, declared
from heldin.stages.config import RunConfig
from heldin.words import Statement
from heldin.words.guarantee import Assumption

_MADE_OF_TEXTS = {"words", "spacy"}


def assumptions(config: RunConfig) -> tuple[Statement, ...]:
    """What the guarantee assumes, as printed with epsilon: what the base model saw, what a record is, whose names."""
    defense = config.defense
    source = defense.entities if isinstance(defense, EntityDefense) else None
    of_entities = isinstance(defense, EntityDefense)
    entities = Assumption.ENTITIES_PUBLIC() if of_entities else None
    if config.model.pretrain is None:
        assumed = [Assumption.BASE_UNSEEN(entities=entities)]
    elif config.model.pretrain.source is not None:
        assumed = [Assumption.PRETRAINING_CORPUS_UNSEEN(entities=entities)]
    else:
        assumed = [Assumption.PUBLIC_USERS(entities=Assumption.MENTIONS_PUBLIC() if of_entities else None)]
    if config.corpus.text_unit == "sentence":
        assumed.append(Assumption.SENTENCES())
    # A list of the users' own names, or a model trained on their texts, would let one user change others' texts.
    if {d.entities.kind for d in config.data_defenses if isinstance(d, DeIdentify)} & _MADE_OF_TEXTS:
        assumed.append(Assumption.DEIDENTIFIER_UNSEEN())
    # It decides what caps keep, and what two-level sampling may use.
    if isinstance(defense, EntityDefense) and source and (defense.caps or isinstance(defense, UedpDefense)):
        assumed.append(Assumption.ENTITY_IS(counts=defense.counts_as_entity))
        if source.kind in _MADE_OF_TEXTS:
            assumed.append(Assumption.FINDER_UNSEEN())
    return tuple(assumed)


def data_steps(config: RunConfig) -> tuple[DataStep, ...]:
    """What happens to the records before training, and what each step looks at (docs/theory.md#rules-of-the-data)."""
    # a step that is not user-local lets one user's data change another's, which voids a user-level epsilon
    users = config.corpus.users
    steps = _preset_steps(config)
    steps += [
        # Both look at all of a user's records, and at nobody else's.
        _of_slots("minimum number of records"),
        _of_slots("set-asides"),
    ]
    if users.max_records is not None:
        steps.append(_of_slots("maximum number of records"))
    if config.split.audited is not Audited.USERS:
        # Chosen so that no two share a record: another record makes it another pool.
        steps.append(_of_slots("pool of audited entities", user_local=False))
    elif config.split.audit_pool is not None:
        # One more user pushes another out of the pool, who is then always in.
        steps.append(_of_slots("audit pool of fixed size", user_local=False))
    elif config.split.audit_fraction is not None:
        steps.append(_of_slots("audited by public coins"))
    if config.split.assignment is SplitRule.EXACT_HALF:
        # One user's side depends on the others': removing a user moves somebody else's.
        steps.append(_of_slots("an exact half held in", user_local=False))
    steps += _canary_steps(config)
    if isinstance(config.defense, UserEntityDefense) and config.defense.caps:
        from heldin.defenses.texts.caps import caps_named

        named = caps_named(*config.defense.caps, config.defense.counts_as_entity)
        steps.append(_of_slots(named, user_local=False))
    steps += [declared(defense) for defense in config.data_defenses]
    if users.max_users is not None:
        steps.append(_of_slots("sample of max_users users", user_local=False))
    return tuple(steps)


def _of_slots(name: str, *, user_local: bool = True) -> DataStep:
    """A step that counts and chooses records by user, id and place, and reads no text."""
    return DataStep(name=name, user_local=user_local, record_local=False, slots_only=True)


def _preset_steps(config: RunConfig) -> list[DataStep]:
    """What a corpus preset did to the rows before they became records."""
    source = config.corpus.source
    if not isinstance(source, PresetCorpus):
        return []
    return [
        DataStep(
            name=f"{source.name}: {step.name}",
            user_local=step.user_local,
            record_local=step.record_local,
            slots_only=step.slots_only,
        )
        for step in preset_named(source.name).steps
    ]


def _canary_steps(config: RunConfig) -> list[DataStep]:
    """What canary users do to real users' records; made-up canary users change nobody's."""
    steps = []
    for spec in config.canaries:
        if isinstance(spec, SubstringCanaries):
            # Algorithm 1 changes a user's records by those records and a public seed alone
            steps.append(DataStep(name="canary substring inserted", user_local=True, record_local=False))
            if spec.users is not None:  # one more user could push another out; a public coin per user could not
                steps.append(
                    DataStep(name="fixed number of users made canary users", user_local=False, record_local=False)
                )
        elif isinstance(spec, UnseenTokenCanaries) and spec.rarity == "corpus":
            # The tokens are those that the corpus lacks: a user's removal may change every canary user's texts.
            steps.append(DataStep(name="canary tokens unseen in the corpus", user_local=False, record_local=False))
    # Sections of one kind declare the same step: it is told once.
    return list(dict.fromkeys(steps))
