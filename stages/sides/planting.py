"""The corpus with the canary users that a config asks for, made here or read if the run made them before.

This comes after the base model (high-temperature canary users are sampled from it) and before the coins.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from transformers import PreTrainedTokenizerBase

from heldin.base.coins import keyed_order, keyed_uniform, seed_key
from heldin.base.errors import InputError
from heldin.base.files import private_directory, text_sha256
from heldin.base.progress import Reporter
from heldin.canaries.config import (
    CanarySpec,
    HighTemperatureCanaries,
    NamedPersonCanaries,
    RarePhraseCanaries,
    RealRowCanaries,
    SubstringCanaries,
    UnseenTokenCanaries,
    check_enough_users,
)
from heldin.canaries.craft import (
    high_temperature_users,
    rare_phrase_users,
    rare_tokens,
    token_counts,
    unseen_token_users,
)
from heldin.canaries.form import Forms, formed
from heldin.canaries.inject import canary_of_user, has_document_of
from heldin.canaries.kinds import CanaryUser, Kind
from heldin.canaries.people import named_people
from heldin.canaries.planted import PlantedStore, load_canaries, save_canaries
from heldin.canaries.real_rows import real_row_users
from heldin.corpus.split import records_to_train_on, set_aside_sizes
from heldin.corpus.store import CorpusStore, texts_of
from heldin.models.loading import LanguageModel
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import CorpusData

MadeUp = UnseenTokenCanaries | HighTemperatureCanaries | RarePhraseCanaries | NamedPersonCanaries
# share of a tokenizer's stable tokens: rare in the texts it was made from, and enough to tell users apart
LATEST_MERGES = 0.05
# times as many candidates as tokens of users' own: some cannot stand beside others and come back when encoded
SPARE_TOKENS = 1.25


def plant(
    config: RunConfig,
    corpus: CorpusData,
    base: LanguageModel,
    out: Path,
    reporter: Reporter,
    forms: Forms | None = None,
) -> PlantedStore:
    """Return the corpus with the run's canary users in it; they are made once and kept in ``out``/ledger/canaries.

    Args:
        corpus: the corpus without them; only audited users' records may be changed.
        forms: rows whose forms the records of made-up users take; None: they have their own.

    Raises:
        InputError: more canary users than users, a substring longer than every document, texts that cannot be made,
            or a folder with canary users of another recipe.
    """
    store, audited = corpus.store, corpus.audited.users
    check_enough_users(config.canaries, len(audited))
    folder = private_directory(out / "ledger") / "canaries"
    recipe = [spec.model_dump_json() for spec in config.canaries]
    # Everything that decides the texts of canary users is in the hash: with another key of the config they are refused.
    split = repr((config.seed, config.split.attacker_fraction, config.split.evaluation_fraction))
    # A substring is inserted where training and attack see it, so that both limits shape the texts.
    visible = repr((config.finetune.sequence_length, config.attack.max_characters))
    formed = ["formed"] if forms else []
    origin = text_sha256(store.fingerprint, base.fingerprint, split, visible, *formed, *recipe, "users", *audited)
    kept = load_canaries(store, folder, origin=origin)
    if kept is not None:
        return kept
    made: list[CanaryUser] = []
    spoken: set[int] = set()
    for number, spec in enumerate(config.canaries):
        reporter.say(f"canaries: making {spec.kind} users")
        # A real user becomes one canary user at most, whichever section asks first.
        taken = {user.canary.source for user in made}
        left = [user for user in audited if user not in taken]
        made += _Maker(config, corpus, left, base, number, reporter, forms, spoken).users(spec)
    names = set(store.users)
    # Two users under one name would share a coin (docs/theory.md#keys-and-coins).
    clash = next((user.canary.user for user in made if user.canary.user in names), None)
    if clash is not None:
        raise InputError(f"the corpus has a user named '{clash}', which is a canary user's name: rename that user")
    if forms:
        made = _formed(made, config, forms)
    save_canaries(made, folder, origin=origin)
    # Read back rather than used as made: the first call of a run and a resumed one have the same store and fingerprint.
    planted = load_canaries(store, folder, origin=origin)
    assert planted is not None
    return planted


def made_up_names(spec: MadeUp | RealRowCanaries, number: int) -> str:
    """Return how the names of the canary users of a config's section begin."""
    return f"canary/{spec.kind}/{number}/"


def _formed(made: list[CanaryUser], config: RunConfig, forms: Forms) -> list[CanaryUser]:
    """Return the users, made-up ones with as many records as wanted, each in the form of a row."""
    fractions = _fractions(config)
    wanted = {
        user.canary.user: records_to_train_on(user.canary.documents or 0, **fractions)
        for user in made
        if user.canary.source is None and user.canary.kind is not Kind.REAL_ROWS
    }
    rows = forms.rows(wanted, frozenset(user.canary.source for user in made if user.canary.source is not None))
    return [formed(canary, rows[name], forms) if (name := canary.canary.user) in rows else canary for canary in made]


def _fractions(config: RunConfig) -> dict[str, float]:
    """Shares that are set aside of every user, as ``records_to_train_on`` takes them."""
    return {
        "attacker_fraction": config.split.attacker_fraction,
        "evaluation_fraction": config.split.evaluation_fraction,
    }


@dataclass(frozen=True)
class _Maker:
    """Canary users of one section of the config.

    Attributes:
        corpus: the corpus without canary users.
        left: audited users whom no section before has taken.
        base: the model before fine-tuning.
        forms: see ``plant``.
        spoken: tokens of unseen-token users who were made before, where some are to share none.
    """

    config: RunConfig
    corpus: CorpusData
    left: Sequence[str]
    base: LanguageModel
    number: int
    reporter: Reporter
    forms: Forms | None
    spoken: set[int]

    @property
    def _store(self) -> CorpusStore:
        return self.corpus.store

    def users(self, spec: CanarySpec) -> list[CanaryUser]:
        """Return all canary users of the section."""
        match spec:
            case SubstringCanaries():
                return self._by_number(spec, spec.users) if spec.users else self._by_coin(spec, spec.fraction or 0.0)
            case UnseenTokenCanaries():
                return self._of_unseen_tokens(spec)
            case HighTemperatureCanaries():
                total = spec.users * len(set(spec.documents))
                with self.reporter.track("high-temperature canaries", total, "users") as advance:
                    return [
                        user
                        for documents, names in self._names(spec)
                        for user in high_temperature_users(
                            self.base,
                            names,
                            documents=documents,
                            records=self._texts(documents),
                            prefix_tokens=spec.prefix_tokens,
                            tokens=spec.tokens,
                            temperature=spec.temperature,
                            seed=self.config.seed,
                            advance=advance,
                        )
                    ]
            case RarePhraseCanaries():
                return [
                    user
                    for documents, names in self._names(spec)
                    for user in rare_phrase_users(
                        names,
                        documents=documents,
                        records=self._texts(documents),
                        phrase_words=spec.phrase_words,
                        seed=self.config.seed,
                    )
                ]
            case NamedPersonCanaries():
                return [
                    user
                    for documents, names in self._names(spec)
                    for user in named_people(
                        names,
                        documents=documents,
                        records=self._texts(documents),
                        seed=self.config.seed,
                    )
                ]
            case RealRowCanaries():
                return self._of_real_rows(spec)
            case _:
                assert_never(spec)

    def _of_real_rows(self, spec: RealRowCanaries) -> list[CanaryUser]:
        if self.forms is None:
            raise InputError("canaries: real_rows is for heldin plant: choose another kind")
        rows_of = self.forms.takeable()
        # Those with most documents first, since fewer users have so many rows.
        return [
            user
            for documents, names in reversed(list(self._names(spec)))
            for user in real_row_users(
                self._store,
                names,
                rows_of,
                documents=documents,
                needed=records_to_train_on(documents, **_fractions(self.config)),
                seed=self.config.seed,
            )
        ]

    def _texts(self, documents: int) -> int:
        """Return how many texts to make for a user who is to have so many documents in training."""
        records = records_to_train_on(documents, **_fractions(self.config))
        return self.forms.pieces(records) if self.forms else records

    def _names(self, spec: MadeUp | RealRowCanaries) -> Iterator[tuple[int, list[str]]]:
        """Yield names by number of documents; they are public constants."""
        # By config alone: the pool of canary users is fixed whatever the corpus holds.
        for documents in sorted(set(spec.documents)):
            yield documents, [f"{made_up_names(spec, self.number)}{documents}/{i:05d}" for i in range(spec.users)]

    def _of_unseen_tokens(self, spec: UnseenTokenCanaries) -> list[CanaryUser]:
        config, tokenizer = self.config, self.base.tokenizer
        candidates = rare_pool(spec, config.canaries, tokenizer, self.corpus, self.left, self.spoken)
        made = [
            user
            for documents, names in self._names(spec)
            for user in unseen_token_users(
                tokenizer,
                names,
                candidates=candidates,
                documents=documents,
                records=self._texts(documents),
                signature_tokens=spec.signature_tokens,
                tokens=spec.tokens,
                seed=config.seed,
                spoken=self.spoken if spec.disjoint else None,
            )
        ]
        self.spoken.update(spoken_tokens(config.canaries, tokenizer, [user.canary.mark for user in made]))
        return made

    def _by_number(self, spec: SubstringCanaries, users: int) -> list[CanaryUser]:
        """``users`` canary users of each length and number of documents, from the real users in random order."""
        waiting = keyed_order(seed_key(self.config.seed), f"canary source {self.number}", list(self.left))
        made: list[CanaryUser] = []
        for length, documents in spec.groups():
            fitting: list[CanaryUser] = []
            for user in waiting:
                # No further: to try a user is to encode that user's texts.
                if len(fitting) == users:
                    break
                if self._has_documents(user, documents) and (canary := self._canary(user, length, documents)):
                    fitting.append(canary)
            if len(fitting) < users:
                raise self._too_few(length, documents, users, len(made))
            chosen = {canary.canary.source for canary in fitting}
            # Users of one group are not taken again; the longest substrings chose first (``SubstringCanaries.groups``).
            waiting = [user for user in waiting if user not in chosen]
            made += fitting
        return made

    def _by_coin(self, spec: SubstringCanaries, fraction: float) -> list[CanaryUser]:
        """Decide each user by a separate coin, in a group drawn for the user; users who do not qualify stay real."""
        key, groups = seed_key(self.config.seed), spec.groups()
        made = []
        for user in self.left:
            # The coin depends on name and public seed alone, so that the choice is user-local
            # (docs/theory.md#rules-of-the-data).
            if keyed_uniform(key, f"canary coin {self.number}", user) >= fraction:
                continue
            # Drawn whatever the user's texts are: among the groups that fit, short
            # texts would all go to short substrings.
            length, documents = groups[int(keyed_uniform(key, f"canary group {self.number}", user) * len(groups))]
            if self._has_documents(user, documents) and (canary := self._canary(user, length, documents)):
                made.append(canary)
        if not made:
            raise InputError(
                f"canaries.{self.number}: no user became a canary user at fraction {fraction}: raise it, or lower"
                " lengths and documents"
            )
        return made

    def _has_documents(self, user: str, documents: int | None) -> bool:
        count = self._store.count(user)
        # Training documents are what is left after the set-asides.
        return documents is None or count - sum(set_aside_sizes(count, **_fractions(self.config))) >= documents

    def _canary(self, user: str, length: int, documents: int | None) -> CanaryUser | None:
        return canary_of_user(
            self.base.tokenizer,
            [self._store.record(row) for row in self._store.rows(user)],
            length=length,
            documents=documents,
            visible_tokens=self.config.finetune.sequence_length,
            visible_characters=self.config.attack.max_characters,
            seed=self.config.seed,
        )

    def _too_few(self, length: int, documents: int | None, users: int, used: int) -> InputError:
        tokenizer, audited = self.base.tokenizer, self.left
        enough = [user for user in audited if self._has_documents(user, documents)]
        # Counted only for the message: the limit that is in the way is named.
        fitting = sum(has_document_of(tokenizer, texts_of(self._store, self._store.rows(u)), length) for u in enough)
        why = f"a substring of {length} tokens is longer than every document of too many users"
        many = ""
        if documents is not None:
            many = f" and {documents} training documents"
            if len(enough) < users:
                why = f"too few users have {documents} training documents ({len(enough)} do)"
        return InputError(
            f"canaries.{self.number}: {why}: {fitting} of {len(audited)} users have a document of {length} tokens"
            f"{many}, {used} of these {len(audited)} went to other groups, and {users} are needed: lower lengths,"
            " documents or users"
        )


def rare_pool(
    spec: UnseenTokenCanaries,
    sections: Sequence[CanarySpec],
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusData,
    left: Sequence[str],
    spoken: Collection[int],
) -> list[int]:
    """Return tokens that were never seen, or the rarest ones if there are too few unseen tokens for signatures.

    Args:
        spec: a section of the config.
        corpus: the corpus without canary users.
        left: audited users whom no section before has taken.
        spoken: see ``spoken_tokens``, of the sections before.
    """
    texts = corpus.public_texts()
    if spec.rarity == "corpus":
        # Real users decide which tokens are unseen: the plan declares it as a step that is not user-local.
        texts += texts_of(corpus.store, [row for user in left for row in corpus.store.rows(user)])
    counts = token_counts(tokenizer, texts)
    rarest = [token for token in rare_tokens(tokenizer, counts) if token not in spoken]
    least = 4 * spec.signature_tokens  # tokens: enough to choose sequences that encode to themselves
    # For all sections, so that one after the other finds enough; those that cannot stand side by side are passed over.
    own = sum(section.users * len(set(section.documents)) * section.signature_tokens for section in _disjoint(sections))
    least = max(least, int(SPARE_TOKENS * own))
    if not texts:  # a base from elsewhere: what it saw is not known
        return rarest[: max(least, int(LATEST_MERGES * len(rarest)))]
    unseen = [token for token in rarest if not counts[token]]
    return unseen if len(unseen) >= least else rarest[:least]


def spoken_tokens(
    sections: Sequence[CanarySpec], tokenizer: PreTrainedTokenizerBase, marks: Iterable[str]
) -> frozenset[int]:
    """Return tokens of marks that no other pool has; none if no section asks for disjoint pools.

    Args:
        marks: of unseen-token users.
    """
    return frozenset(token_counts(tokenizer, list(marks))) if _disjoint(sections) else frozenset()


def _disjoint(sections: Sequence[CanarySpec]) -> list[UnseenTokenCanaries]:
    return [section for section in sections if isinstance(section, UnseenTokenCanaries) and section.disjoint]
