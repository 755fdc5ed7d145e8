"""The corpus with the canary users that a config asks for, made here or read if the run made them before.

This comes after the base model (high-temperature canary users are sampled from it) and before the coins.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import assert_never

from heldin.base.coins import keyed_order, keyed_uniform, seed_key
from heldin.base.errors import InputError
from heldin.base.files import private_directory, text_sha256
from heldin.base.progress import Reporter
from heldin.canaries.config import (
    CanarySpec,
    HighTemperatureCanaries,
    RarePhraseCanaries,
    SubstringCanaries,
    UnseenTokenCanaries,
)
from heldin.canaries.craft import (
    high_temperature_users,
    rare_phrase_users,
    rare_tokens,
    token_counts,
    unseen_token_users,
)
from heldin.canaries.inject import canary_of_user, has_document_of
from heldin.canaries.kinds import CanaryUser
from heldin.canaries.planted import PlantedStore, load_canaries, save_canaries
from heldin.corpus.split import records_to_train_on, set_aside_sizes
from heldin.corpus.store import CorpusStore, texts_of
from heldin.jobs.config import RunConfig
from heldin.models.loading import LanguageModel

LEAST_REAL_USERS = 2
# share of a tokenizer's stable tokens: rare in the texts it was made from, and enough to tell users apart
LATEST_MERGES = 0.05


def check_enough_users(config: RunConfig, users: int) -> None:
    """Raise InputError if Algorithm 1 is to make more canary users than there are users to take."""
    asked = sum(spec.asked_for() for spec in config.canaries if isinstance(spec, SubstringCanaries))
    if asked and asked > users - LEAST_REAL_USERS:
        raise InputError(
            f"canaries ask for {asked} real users to be made canary users, but {users} users pass corpus.users and"
            f" {LEAST_REAL_USERS} of them must stay as they are: lower users, lengths or documents"
        )


def plant(
    config: RunConfig,
    store: CorpusStore,
    audited: Sequence[str],
    public_rows: Sequence[int],
    base: LanguageModel,
    out: Path,
    reporter: Reporter,
) -> PlantedStore:
    """The corpus with the run's canary users in it; they are made once and kept in ``out``/ledger/canaries.

    Args:
        config: config of the run, with canaries.
        store: the corpus without them.
        audited: users whose records may be changed; public users' never are.
        public_rows: rows of the texts that the base model was pre-trained on.
        base: the model before fine-tuning.
        out: the run folder.
        reporter: receives the progress.

    Raises:
        InputError: more canary users than users, a substring longer than every document, texts that cannot be made,
            or a folder with canary users of another recipe.
    """
    check_enough_users(config, len(audited))
    folder = private_directory(out / "ledger") / "canaries"
    recipe = [spec.model_dump_json() for spec in config.canaries]
    split = repr((config.seed, config.split.attacker_fraction, config.split.evaluation_fraction))
    visible = repr((config.finetune.sequence_length, config.attack.max_characters))
    of = text_sha256(store.fingerprint, base.fingerprint, split, visible, *recipe, "users", *audited)
    kept = load_canaries(store, folder, of=of)
    if kept is not None:
        return kept
    made: list[CanaryUser] = []
    for number, spec in enumerate(config.canaries):
        reporter.say(f"canaries: making {spec.kind} users")
        taken = {user.canary.source for user in made}
        left = [user for user in audited if user not in taken]
        made += _Maker(config, store, left, public_rows, base, number, reporter).users(spec)
    names = set(store.users)
    clash = next((user.canary.user for user in made if user.canary.user in names), None)
    if clash is not None:
        raise InputError(f"the corpus has a user named '{clash}', which is a canary user's name: rename that user")
    save_canaries(made, folder, of=of)
    planted = load_canaries(store, folder, of=of)
    assert planted is not None
    return planted


class _Maker:
    """Canary users of the config's section ``number``."""

    def __init__(
        self,
        config: RunConfig,
        store: CorpusStore,
        audited: Sequence[str],
        public_rows: Sequence[int],
        base: LanguageModel,
        number: int,
        reporter: Reporter,
    ) -> None:
        self._config, self._store, self._audited, self._public = config, store, audited, public_rows
        self._base, self._number, self._reporter = base, number, reporter
        self._fractions = {
            "attacker_fraction": config.split.attacker_fraction,
            "evaluation_fraction": config.split.evaluation_fraction,
        }

    def users(self, spec: CanarySpec) -> list[CanaryUser]:
        """All canary users of the section."""
        match spec:
            case SubstringCanaries():
                return self._by_number(spec, spec.users) if spec.users else self._by_coin(spec, spec.fraction or 0.0)
            case UnseenTokenCanaries():
                candidates = self._candidates(spec)
                return [
                    user
                    for documents, names in self._names(spec)
                    for user in unseen_token_users(
                        self._base.tokenizer,
                        names,
                        candidates=candidates,
                        documents=documents,
                        records=records_to_train_on(documents, **self._fractions),
                        signature_tokens=spec.signature_tokens,
                        tokens=spec.tokens,
                        seed=self._config.seed,
                    )
                ]
            case HighTemperatureCanaries():
                total = spec.users * len(set(spec.documents))
                with self._reporter.track("high-temperature canaries", total, "users") as advance:
                    return [
                        user
                        for documents, names in self._names(spec)
                        for user in high_temperature_users(
                            self._base,
                            names,
                            documents=documents,
                            records=records_to_train_on(documents, **self._fractions),
                            prefix_tokens=spec.prefix_tokens,
                            tokens=spec.tokens,
                            temperature=spec.temperature,
                            seed=self._config.seed,
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
                        records=records_to_train_on(documents, **self._fractions),
                        phrase_words=spec.phrase_words,
                        seed=self._config.seed,
                    )
                ]
            case _:
                assert_never(spec)

    def _names(
        self, spec: UnseenTokenCanaries | HighTemperatureCanaries | RarePhraseCanaries
    ) -> Iterator[tuple[int, list[str]]]:
        """Names by number of documents; they are public constants."""
        for documents in sorted(set(spec.documents)):
            yield documents, [f"canary/{spec.kind}/{self._number}/{documents}/{i:05d}" for i in range(spec.users)]

    def _candidates(self, spec: UnseenTokenCanaries) -> list[int]:
        """Tokens that were never seen, or the rarest ones if there are too few unseen tokens for signatures."""
        tokenizer = self._base.tokenizer
        rows = list(self._public)
        if spec.rarity == "corpus":
            rows += [row for user in self._audited for row in self._store.rows(user)]
        counts = token_counts(tokenizer, texts_of(self._store, rows))
        rarest = rare_tokens(tokenizer, counts)
        least = 4 * spec.signature_tokens
        if not rows:  # a base from elsewhere: what it saw is not known
            return rarest[: max(least, int(LATEST_MERGES * len(rarest)))]
        unseen = [token for token in rarest if not counts[token]]
        return unseen if len(unseen) >= least else rarest[:least]

    def _by_number(self, spec: SubstringCanaries, users: int) -> list[CanaryUser]:
        """``users`` canary users of each length and number of documents, from the real users in random order."""
        waiting = keyed_order(seed_key(self._config.seed), f"canary source {self._number}", list(self._audited))
        made: list[CanaryUser] = []
        for length, documents in spec.groups():
            found: list[CanaryUser] = []
            for user in waiting:
                if len(found) == users:
                    break
                if self._has_documents(user, documents) and (canary := self._canary(user, length, documents)):
                    found.append(canary)
            if len(found) < users:
                raise self._too_few(length, documents, users, len(made))
            chosen = {canary.canary.source for canary in found}
            waiting = [user for user in waiting if user not in chosen]
            made += found
        return made

    def _by_coin(self, spec: SubstringCanaries, fraction: float) -> list[CanaryUser]:
        """Each user by its own coin, in a group drawn for it; a user who does not qualify stays real."""
        key, groups = seed_key(self._config.seed), spec.groups()
        made = []
        for user in self._audited:
            if keyed_uniform(key, f"canary coin {self._number}", user) >= fraction:
                continue
            length, documents = groups[int(keyed_uniform(key, f"canary group {self._number}", user) * len(groups))]
            if self._has_documents(user, documents) and (canary := self._canary(user, length, documents)):
                made.append(canary)
        if not made:
            raise InputError(
                f"canaries.{self._number}: no user became a canary user at fraction {fraction}: raise it, or lower"
                " lengths and documents"
            )
        return made

    def _has_documents(self, user: str, documents: int | None) -> bool:
        count = self._store.count(user)
        return documents is None or count - sum(set_aside_sizes(count, **self._fractions)) >= documents

    def _canary(self, user: str, length: int, documents: int | None) -> CanaryUser | None:
        return canary_of_user(
            self._base.tokenizer,
            [self._store.record(row) for row in self._store.rows(user)],
            length=length,
            documents=documents,
            visible_tokens=self._config.finetune.sequence_length,
            visible_characters=self._config.attack.max_characters,
            seed=self._config.seed,
        )

    def _too_few(self, length: int, documents: int | None, users: int, used: int) -> InputError:
        tokenizer, audited = self._base.tokenizer, self._audited
        enough = [user for user in audited if self._has_documents(user, documents)]
        fitting = sum(has_document_of(tokenizer, texts_of(self._store, self._store.rows(u)), length) for u in enough)
        why = f"a substring of {length} tokens is longer than every document of too many users"
        many = ""
        if documents is not None:
            many = f" and {documents} training documents"
            if len(enough) < users:
                why = f"too few users have {documents} training documents ({len(enough)} do)"
        return InputError(
            f"canaries.{self._number}: {why}: {fitting} of {len(audited)} users have a document of {length} tokens"
            f"{many}, {used} of these {len(audited)} went to other groups, and {users} are needed: lower lengths,"
            " documents or users"
        )
