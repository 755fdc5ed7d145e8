"""The tokens of which the signatures of unseen-token canary users are drawn."""

from collections.abc import Collection, Iterable, Sequence

from transformers import PreTrainedTokenizerBase

from heldin.canaries.config import CanarySpec, UnseenTokenCanaries
from heldin.canaries.craft import rare_tokens, token_counts
from heldin.corpus.store import texts_of
from heldin.stages.sides.corpus import CorpusData

# share of a tokenizer's stable tokens: rare in the texts it was made from, and enough to tell users apart
LATEST_MERGES = 0.05
# times as many candidates as tokens of users' own: some cannot stand beside others and come back when encoded
SPARE_TOKENS = 1.25


def rare_pool(
    spec: UnseenTokenCanaries,
    sections: Sequence[CanarySpec],
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusData,
    left: Sequence[str],
    spoken: Collection[int],
) -> list[int]:
    """Tokens that were never seen, or the rarest ones if there are too few unseen tokens for signatures.

    Args:
        spec: a section of the config.
        sections: all of them.
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
    """Tokens of marks that stand in nobody else's pool; none if no section asks for tokens of its users' own.

    Args:
        sections: of the config.
        marks: of unseen-token users.
    """
    return frozenset(token_counts(tokenizer, list(marks))) if _disjoint(sections) else frozenset()


def _disjoint(sections: Sequence[CanarySpec]) -> list[UnseenTokenCanaries]:
    return [section for section in sections if isinstance(section, UnseenTokenCanaries) and section.disjoint]
