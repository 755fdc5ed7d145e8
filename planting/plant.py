"""``heldin plant``: draw coins, plant canary users, and write the training set for somebody else's trainer.

Rows get new names and ids. A keyed hash of each row decides its position.
"""

import functools
import itertools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

from heldin.attacks.kinds import get_attack
from heldin.audit.blind import text_separation
from heldin.audit.headline import LENGTH_DROWNS
from heldin.base.artefacts import require_not_purged
from heldin.base.coins import keyed_digest, keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import one_process_at_a_time, whole_directory
from heldin.base.progress import Reporter
from heldin.corpus.forms import Row
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.split import Part
from heldin.corpus.store import document_of
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts
from heldin.models.model_names import require_model
from heldin.models.opening import load_language_model
from heldin.models.token_scores import TokenScores
from heldin.models.tokens import as_read
from heldin.planting.beforehand import control_lines, planned_power, said_beforehand
from heldin.planting.control import unseen_rows, write_unseen
from heldin.planting.plant_config import PlantConfig
from heldin.planting.plant_data import canary_forms, planted_data, run_of
from heldin.planting.plant_folder import (
    CONFIG,
    Manifest,
    fingerprints,
    further_references,
    plan_hash,
    read_plant_config,
    read_planted,
    require_plan,
    seal_before_coins,
    write_config,
    write_manifest,
)
from heldin.planting.records import Copied, copied, copy_records, telling_of
from heldin.planting.training_set import TrainingSet, look_at, training_set, with_made_up_rejected
from heldin.record.facts import SkippedRows
from heldin.record.planted_facts import FormFacts
from heldin.record.planted_files import MANIFEST, SEAL, TRAINING, content_sha256
from heldin.stages.config_files import first_difference
from heldin.stages.measures.asked import check_asked
from heldin.stages.sides.data import RunData, check_measures

_FIRST = 2000  # rows from which texts are drawn
_TEXTS = 200  # whose scores are held against their lengths
_ROWS = 1000  # canary rows, and as many real ones, that a bag of words is fitted and tested on
# The attack of the paper first, then those that length moves less.
_PREFERRED = ("likelihood-ratio", "likelihood-ratio-per-token", "loss", "zlib", "min-k++")


def plant(config: PlantConfig, out: Path, reporter: Reporter) -> Manifest:
    """Plant in ``out``, or continue a planting that a call with the same config began there.

    Args:
        config: all settings of the planting and the audit.
        out: folder that receives the training set and manifest, to hand on, and the secrets, to keep.

    Raises:
        InputError: the training set or the model is unusable, or ``out`` contains other files.
    """
    require_readable(config)
    require_not_purged(out)
    if (out / MANIFEST).is_file():
        with one_process_at_a_time(out):
            _take_folder(_with_attack_of(config, out), out)
            reporter.say(f"'{out}' is already planted: heldin draws and writes nothing")
            return read_planted(out)[1]
    base = reference_model(config)
    source = training_set(config, base.tokenizer)
    config = _with_attack_of(config, out) if (out / CONFIG).is_file() else with_attack(config, source, base, reporter)
    with one_process_at_a_time(out):
        _take_folder(config, out)
        names = config.columns
        telling = telling_of(
            config, frozenset({names.user, names.id, names.date, names.rejected, *source.text.columns})
        )
        kept = copy_records(source, out / "ledger", reporter, on_bad=config.bad_rows, telling=telling)
        source = replace(source, unparted=kept.unparted)
        unseen = list(unseen_rows(config, source))
        seal_before_coins(out, fingerprints(config), planned_power(config, kept.rows, len(unseen)))
        data = planted_data(config, out, reporter, base, source)
        check_measures(run_of(config, out), data, base)
        form = form_facts(config, data)
        for line in said_beforehand(config, data, source, kept.late_rows, form):
            reporter.say(line)
        for line in control_lines(config, kept.rows, len(unseen)):
            reporter.say(line)
        sha256 = _write_training_set(source, data, out, kept, config.seed, reporter)
        manifest = Manifest(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            plan=plan_hash(out),
            reference=base.fingerprint,
            ledger=data.ledger.commitment(),
            file=config.training.name,
            sha256=sha256,
            rows=len(data.training_rows),
            skipped=SkippedRows.of("corpus", kept.skipped, users=len(data.corpus.store.users), records=kept.rows),
            columns=_named(config),
            looks=config.looks,
            evidence=config.evidence,
            split=config.dataset_split,
        )
        sample = write_unseen(unseen, out / "ledger") if unseen else None
        write_manifest(manifest, out, form, sample)
    return manifest


def require_readable(config: PlantConfig) -> None:
    """Raise InputError if model, training set or its kind does not exist, or the set lacks a column."""
    require_model(config.reference)
    if not config.training.exists():
        raise InputError(f"there is no training set '{config.training}': give a file or folder as 'training'")
    look_at(config)


def reference_model(config: PlantConfig) -> LanguageModel:
    """Load the primary reference model. Raises InputError if a reference is unsuitable for the audit."""
    # What the audit will need of models is checked now: after a training it is too late. One at a time.
    for name in further_references(config):
        _require_scores_of(load_language_model(name, precision=config.attack.precision))
    base = load_language_model(config.reference, revision=config.revision)
    _require_scores_of(base)
    check_asked(config.measures, None, base)
    return base


def with_attack(config: PlantConfig, source: TrainingSet, base: LanguageModel, reporter: Reporter) -> PlantConfig:
    """Return the config with a primary attack: the config's own, or an attack whose score depends little on text
    length.

    Args:
        config: config of the planted set before any coin is drawn.
        source: the training set; some of its rows are scored.
        reporter: receives a line with the chosen attack and the reason.
    """
    if "primary" in config.attack.model_fields_set:
        return config
    correlations = length_correlations(config, source, base)
    if not correlations:
        return config
    primary = least_by_length(correlations)
    measured = ", ".join(f"{name} {correlation:+.2f}" for name, correlation in correlations.items())
    reporter.say(
        f"attack: {primary} is the primary attack, because its score depends little on the length of a text (rank"
        f" correlations under the reference: {measured}). Set attack.primary to choose another"
    )
    return config.model_copy(update={"attack": config.attack.model_copy(update={"primary": primary})})


def _with_attack_of(config: PlantConfig, out: Path) -> PlantConfig:
    """Return the config with the primary attack that the first call in this folder chose, unless the config sets
    one."""
    if "primary" in config.attack.model_fields_set or not (out / CONFIG).is_file():
        return config
    primary = read_plant_config(out).attack.primary
    return config.model_copy(update={"attack": config.attack.model_copy(update={"primary": primary})})


def _write_training_set(
    source: TrainingSet, data: RunData, out: Path, kept: Copied, seed: int, reporter: Reporter
) -> str:
    """Write the planted training set, and return the hash of its content."""
    with reporter.track("writing", len(data.training_rows), "rows") as advance:

        def rows() -> Iterator[tuple[bytes, Row]]:
            for row in planted_rows(source, data, numbered=kept.numbered, seed=seed):
                yield row
                advance(1)

        with whole_directory(out / TRAINING) as temporary:
            sha256 = content_sha256(source.write(rows(), temporary, temporary / "sorting"))
            if content_sha256(source.path) != kept.sha256:
                raise InputError(
                    f"'{source.path}' changed while heldin read the rows: restore this file, and run the command again"
                )
    return sha256


def _require_scores_of(lm: LanguageModel) -> None:
    """Raise InputError for a model without a start token, or with an unknown context length."""
    _ = lm.start_token, lm.context


def _named(config: PlantConfig) -> dict[str, str | None]:
    """Return column names by role. Omits the plain text's column if other columns contain the text."""
    plain = config.columns.messages is None and config.columns.prompt is None
    left_out = {"drop"} if plain else {"drop", "text"}
    columns: dict[str, str | None] = config.columns.model_dump(exclude_none=True, exclude=left_out)
    # Said, since it is no default: without it a reader would look for a column of users.
    return columns if config.columns.user is not None else {**columns, "user": None}


def _take_folder(config: PlantConfig, out: Path) -> None:
    """Mark the folder as heldin's, or find the unfinished planting of an earlier call. Does not touch other files in
    the folder."""
    if config.training.is_relative_to((out / TRAINING).resolve()):
        raise InputError(f"'{config.training}' is in the folder for the planted training set: choose another --out")
    finished = (out / MANIFEST).is_file()
    drawn = (out / "ledger" / "ledger.json").is_file()
    if not (out / "ledger" / SEAL).is_file():
        empty = [out / "ledger"] if not any((out / "ledger").glob("[!.]*")) else []
        if any(path not in empty and not path.name.endswith(".tmp") for path in out.iterdir()):
            raise InputError(f"'{out}' is not empty and has no planted training set: choose another --out")
        write_config(config, out)
        return
    if not (drawn or finished):
        # A call before ended at what was wrong, or was killed.
        shutil.rmtree(out / "ledger", ignore_errors=True)
        write_config(config, out)
        return
    changed = first_difference(read_plant_config(out).model_dump(mode="json"), config.model_dump(mode="json"))
    if changed:
        raise InputError(
            f"'{out}' has a training set that was planted with other settings ('{changed}' differs): choose another"
            " --out"
        )
    require_plan(out)
    if finished and not (out / TRAINING / config.training.name).exists():
        raise InputError(f"'{out / TRAINING}' is missing: restore this file, or plant in another folder")
    if finished and content_sha256(config.training) != copied(out / "ledger").sha256:
        raise InputError(
            f"'{config.training}' changed after heldin drew its coins: restore the training set, or plant again"
        )


def length_correlations(config: PlantConfig, source: TrainingSet, base: LanguageModel) -> dict[str, float]:
    """Return, for each attack, the rank correlation between score and text length under the reference model.

    For a likelihood ratio, heldin uses the reference's likelihood, because length affects both likelihoods alike.
    """
    rows = itertools.islice(source.rows(BadRows(OnBadRows.SKIP)), _FIRST)
    every = {
        f"{number}": document_of(record["text"], record.get("spans"), record.get("layout"))
        for number, (record, _) in enumerate(rows)
    }
    drawn = keyed_order(seed_key(config.seed), "lengths", list(every))[:_TEXTS]
    chosen = [as_read(every[number].cut(config.attack.max_characters)) for number in drawn]
    attacks = {name: get_attack(name) for name in _PREFERRED if name in config.attack.names}
    moments = any(attack.needs_moments for attack in attacks.values())
    scores = score_texts(base, chosen, moments=moments)
    lengths = [len(text) for text in chosen]
    correlations = {}
    for name, attack in attacks.items():
        owners, nothing = [str(i) for i in range(len(chosen))], [_nothing(mine) for mine in scores]
        values = [statistic.value for statistic in attack.statistics(owners, chosen, scores, nothing)]
        varies = len(set(lengths)) > 1 and len(set(values)) > 1
        correlations[name] = float(stats.spearmanr(values, lengths).statistic) if varies else 0.0
    return correlations


def least_by_length(correlations: Mapping[str, float]) -> str:
    """Return the first attack whose score hardly depends on text length, or else the attack with the least
    dependence."""
    unmoved = (name for name, correlation in correlations.items() if abs(correlation) < LENGTH_DROWNS)
    return next(unmoved, min(correlations, key=lambda name: abs(correlations[name])))


def form_facts(config: PlantConfig, data: RunData) -> FormFacts | None:
    """Return how well text alone distinguishes canary rows from real rows; None without canary users. The result
    depends on no coin."""
    if not data.canaries:
        return None
    key, corpus = seed_key(config.seed), data.corpus.store
    rows = [(user, row) for user in sorted(data.canaries) for row in data.ledger.parts[user][Part.TRAIN]]
    by_id = {data.store.id(row): (user, data.store.text(row)) for user, row in rows}
    canary_rows = [by_id[id_] for id_ in keyed_order(key, "form", list(by_id))[:_ROWS]]
    # Of all rows, and not of a sample of users: most rows of a training set are heavy users'.
    dice = np.random.default_rng(config.seed)
    real = [corpus.text(int(row)) for row in dice.permutation(len(corpus))[:_ROWS]]
    area = text_separation(canary_rows, real, seed=config.seed)
    return FormFacts(
        canary_rows=len(canary_rows),
        real_rows=len(real),
        auroc=None if area is None else round(area, 3),
        kinds=sorted({canary.kind for canary in data.canaries.values()}),
    )


def _nothing(scores: TokenScores) -> TokenScores:
    return TokenScores(np.zeros_like(scores.logprobs))


def planted_rows(
    source: TrainingSet, data: RunData, *, numbered: frozenset[str], seed: int
) -> Iterator[tuple[bytes, Row]]:
    """Yield key and columns of each row to train on: real rows under new names and ids, and canary users' rows.

    All user names and ids are replaced, and rows are sorted by a keyed hash, so neither reveals a canary user. Coins
    decide only whether a row is written. They do not change its content (docs/theory.md#conditions-of-one-run).

    Args:
        numbered: columns of users or ids with only whole numbers; their new values are whole numbers too.
        seed: public seed.
    """
    corpus = data.corpus.store
    names = _Names(data, source, numbered)
    real = int(corpus.counts.sum())
    rows = data.training_rows
    of_canaries = rows[rows >= real].tolist()
    trained = np.zeros(real, dtype=np.bool_)
    trained[rows[rows < real]] = True
    forms = canary_forms(data)
    # A few thousand at most: rows of which canary rows take the other columns.
    wanted, copied = {forms[row] for row in of_canaries}, dict[int, Row]()
    seen: dict[str, int] = {}
    for row_names, content in source.rows(BadRows(OnBadRows.SKIP)):
        user = str(row_names["user"])
        number = seen.get(user, 0)
        seen[user] = number + 1
        row = corpus.rows(user)[number]
        if row in wanted:
            copied[row] = content
        if trained[row]:
            id_ = corpus.id(row)
            yield names.key(id_), names.given(content, row, user, id_)
    for row in of_canaries:
        record = data.store.record(row)
        content = copied[forms[row]]
        if record.user not in data.of_real_rows:
            content = source.text.put(content, record.text)
            content = with_made_up_rejected(content, source.columns, record.id, seed)
        yield names.key(record.id), names.given(content, row, record.user, record.id)


@dataclass(frozen=True)
class _Names:
    """New names and ids. They are keyed hashes, or numbers for a column with only numbers.

    Attributes:
        data: the users, and the key of the coins.
        numbered: see ``planted_rows``.
    """

    data: RunData
    source: TrainingSet
    numbered: frozenset[str]

    def key(self, record: str) -> bytes:
        """Return the key that decides the position of a row, made from the row's id."""
        return self._digest("order of rows", record)

    def given(self, content: Row, row: int, user: str, record: str) -> Row:
        """Return the content of a row under a new user name and id."""
        columns = self.source.columns
        new: Row = {**content} if columns.user is None else {**content, columns.user: self._users[user]}
        if columns.id is not None and columns.id in self.numbered:
            rows, places = self._places
            new[columns.id] = int(places[np.searchsorted(rows, row)]) + 1
        elif columns.id is not None:
            new[columns.id] = self._digest("written id", record).hex()[:24]
        return new

    @functools.cached_property
    def _users(self) -> dict[str, str | int]:
        hashed = {user: self._digest("written user", user).hex()[:16] for user in self.data.store.users}
        if self.source.columns.user not in self.numbered:
            return dict(hashed)
        return {user: number for number, user in enumerate(sorted(hashed, key=lambda user: hashed[user]), start=1)}

    @functools.cached_property
    def _places(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return all rows, sorted, and the rank of each row's key among all rows, so no id depends on
        membership."""
        store = self.data.store
        rows = np.array(sorted(row for user in store.users for row in store.rows(user)), dtype=np.int64)
        keys = [int.from_bytes(self.key(store.id(row))[:8], "big") for row in rows.tolist()]
        return rows, np.argsort(np.argsort(np.array(keys, dtype=np.uint64)))

    def _digest(self, purpose: str, identity: str) -> bytes:
        return keyed_digest(self.data.ledger.coins_key, purpose, identity)
