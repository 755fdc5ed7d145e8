"""The attacker's dials side by side: each setting's AUROC, and how far it is from the leading one on the same users.

From statistics alone; no model is run (Kandpal et al. 2024, Tables 6 and 7 and Appendix B).
"""

from collections.abc import Mapping, Sequence

from attacks.protocol import UserScores
from attacks.scoring import TextStatistic, dial_of, user_scores
from audit.attacker import AttackConfig
from audit.bootstrap import bootstrap
from audit.evaluation import by_side, estimate_of
from audit.paired import auroc_difference
from audit.record_results import DialSetting, Difference

LEADING_REFERENCE = "the base model"


def dials(
    statistics: Sequence[TextStatistic],
    member: Mapping[str, bool],
    *,
    attack: AttackConfig,
    resamples: int,
    seed: int,
) -> list[DialSetting]:
    """Every setting of every dial that was turned, the leading one first; nothing where no dial was.

    Args:
        statistics: of every text of the users in ``member``, under every setting.
        member: user to whether held in; two or more on each side.
        attack: which settings lead.
        resamples: of the bootstrap.
        seed: of the bootstrap; public.
    """
    leading = user_scores(statistics, attack.primary, attack.aggregations[0])

    def row(dial: str, setting: str, scores: UserScores) -> DialSetting:
        sides, lead = by_side(scores, member), by_side(leading, member)
        return DialSetting(
            dial=dial,
            setting=setting,
            auroc=estimate_of(bootstrap(*sides, (), resamples=resamples, seed=seed).auroc),
            leads=scores is leading,
            difference=None if scores is leading else _difference(auroc_difference(lead, sides)),
        )

    names = dict.fromkeys(s.attack for s in statistics)
    turned = [(name, *found) for name in names if (found := dial_of(attack.primary, name))]
    rows: list[DialSetting] = []
    if len(attack.aggregations) > 1:
        rows.append(row("aggregation", attack.aggregations[0], leading))
        rows += [
            row("aggregation", other, user_scores(statistics, attack.primary, other))
            for other in attack.aggregations[1:]
        ]
    leads = {"documents": attack.documents[0], "reference": attack.reference or LEADING_REFERENCE}
    for dial in dict.fromkeys(dial for _, dial, _ in turned):
        rows.append(row(dial, leads.get(dial, "no shadow model"), leading))
        rows += [
            row(dial, setting, user_scores(statistics, name, attack.aggregations[0]))
            for name, its, setting in turned
            if its == dial
        ]
    return rows


def _difference(of: tuple[float, float, float] | None) -> Difference | None:
    return None if of is None else Difference(value=of[0], lower=of[1], upper=of[2])
