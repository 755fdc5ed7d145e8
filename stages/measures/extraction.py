"""The extraction stage: how likely the released model emits users' training texts, and what else they stand in.

The windows follow from the key of the coins, which is drawn before training, for another purpose than the coins: so
cells of a sweep that share coins ask the same windows. Membership meets the probabilities only when they are counted.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from heldin.attacks.extraction import ExtractionConfig, TextProbabilities
from heldin.attacks.marks import MarkScores, ranks
from heldin.attacks.windows import Windows, found_in, found_in_others, require_a_window, windows_of
from heldin.audit.extraction import ExtractionFacts, extraction_facts
from heldin.audit.marks import mark_groups
from heldin.base.files import text_sha256
from heldin.base.progress import Reporter
from heldin.models.continuations import continuation_logprobs, require_context
from heldin.models.loading import LanguageModel, same_tokens
from heldin.stages.config import RunConfig
from heldin.stages.measures.extraction_file import FILE, kept_probabilities, read_probabilities, write_probabilities
from heldin.stages.measures.marks import kept_marks, measure_marks
from heldin.stages.sides.data import RunData


@dataclass(frozen=True)
class Among:
    """Where suffixes are looked for.

    Attributes:
        training: of every training text those whose it is, and the text; None: not known.
        public: public texts; None: there are none.
    """

    training: Iterable[tuple[Collection[str], str]] | None
    public: Sequence[str] | None = None


def require_windows(config: RunConfig, data: RunData, base: LanguageModel) -> None:
    """Check before training what extraction asks for, if anything. Raises InputError if no window can be had."""
    asked = config.extraction
    if asked is not None:
        require_context(base, asked.length)
        require_a_window(_texts(config, data, asked), base.tokenizer, asked, config.finetune.sequence_length)


def windows_of_run(config: RunConfig, data: RunData, tokenizer: PreTrainedTokenizerBase) -> Windows:
    """One window of each text that training saw or would have seen; no role is looked at."""
    asked = config.extraction
    assert asked is not None
    texts = _texts(config, data, asked)
    return windows_of(texts, tokenizer, asked, data.ledger.coins_key, config.finetune.sequence_length)


def measure_extraction(
    config: RunConfig,
    data: RunData,
    models: tuple[LanguageModel, LanguageModel],
    maker: Callable[[], LanguageModel],
    out: Path,
    reporter: Reporter,
) -> ExtractionFacts | None:
    """What is extracted and how far canary users' marks are exposed; None if not asked for.

    Probabilities are read from ``extraction.parquet`` and ``marks.parquet`` if they are there.

    Args:
        models: the released model, and the reference.
        maker: gives the model with which canary users were made, in float32.

    Raises:
        InputError: no window can be had, or a model is broken.
    """
    asked = config.extraction
    if asked is None:
        return None
    target, reference = models
    texts = _texts(config, data, asked)
    of = probabilities_name(asked, texts, target.fingerprint, reference.fingerprint)
    found = read_probabilities(out / FILE, of=of, say=reporter.say)
    if found is None:
        windows = windows_of_run(config, data, target.tokenizer)
        among = Among(_training(data), data.public_texts() or None)
        found = probabilities(windows, asked, models, among, reporter)
        write_probabilities(found, out / FILE, of=of)
    facts = extraction_facts(found, data.ledger.membership(), data.canaries, asked)
    return _with_marks(facts, data, measure_marks(config, data, models, maker, out, reporter))


def kept_extraction(
    config: RunConfig, data: RunData, out: Path, *, target: str, reference: str
) -> ExtractionFacts | None:
    """The counts again, from the probabilities that the stage left; None if they were not asked for.

    Args:
        target: fingerprint of the released model.

    Raises:
        InputError: a file is missing or damaged, or of other models or texts.
    """
    asked = config.extraction
    if asked is None:
        return None
    found = kept_probabilities(out, of=probabilities_name(asked, _texts(config, data, asked), target, reference))
    facts = extraction_facts(found, data.ledger.membership(), data.canaries, asked)
    return _with_marks(facts, data, kept_marks(data, out, target=target, reference=reference))


def _with_marks(facts: ExtractionFacts, data: RunData, found: MarkScores | None) -> ExtractionFacts:
    if found is None:
        return facts
    return facts.model_copy(update={"marks": mark_groups(ranks(found), data.canary_membership(), data.canaries)})


def probabilities(
    windows: Windows,
    asked: ExtractionConfig,
    models: tuple[LanguageModel, LanguageModel],
    among: Among,
    reporter: Reporter,
) -> TextProbabilities:
    """The probability of each window's suffix under both models, and where else it stands.

    Args:
        asked: what is asked of the models.
        models: the audited model and the reference, whose probabilities are left out where its tokens are others.
        among: texts in which suffixes are looked for.
    """
    target, reference = models
    compared = same_tokens(target.tokenizer, reference.tokenizer)
    asking = [target, *([reference] if compared else [])]
    with reporter.track("extraction", len(asking) * len(windows.rows), "texts") as advance:
        under = [
            windows.spread(
                continuation_logprobs(
                    model,
                    windows.tokens,
                    asked.prefix,
                    temperature=asked.temperature,
                    top_k=asked.top_k,
                    advance=advance,
                )
            )
            for model in asking
        ]
    if not compared:
        reporter.say(f"extraction: '{reference.name}' has other tokens than the target and is left out")
    others = public = None
    if among.training is not None:
        others = windows.marked(found_in_others(windows, among.training, target.tokenizer, asked))
    if among.public is not None:
        public = windows.marked(found_in(windows, among.public, target.tokenizer, asked))
    return TextProbabilities(windows.users, under[0], under[1] if compared else None, others, public)


def probabilities_name(asked: ExtractionConfig, texts: Mapping[str, Sequence[str]], target: str, reference: str) -> str:
    """The name that ``extraction.parquet`` carries: a hash of models, texts and what was asked.

    Args:
        asked: what was asked of the models.
    """
    return text_sha256(target, reference, asked.model_dump_json(), repr([(user, *its) for user, its in texts.items()]))


def _texts(config: RunConfig, data: RunData, asked: ExtractionConfig) -> dict[str, list[str]]:
    """Texts that training saw or would have seen, as their authors wrote them, by scored user."""
    # Held-out users too: they are the control.
    return data.known_training_texts(data.ledger.scored_users(), asked.texts_per_user, config.seed)


def _training(data: RunData) -> Iterator[tuple[Collection[str], str]]:
    owners = data.ledger.owners()
    for row in data.training_rows.tolist():
        record = data.store.record(row)
        # As written, also where de-identification changed it: equal texts are changed alike.
        yield {record.user, owners.get(row, record.user)}, record.text
