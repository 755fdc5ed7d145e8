"""Records that an earlier heldin wrote, migrated to the current schema one version at a time.

Records of schemas 1 and 2 hold no randomisation test, which needs the scores: they cannot be brought up to date.
"""

from collections.abc import Callable
from typing import Any

from heldin.audit.headline import in_todays_words
from heldin.defenses.plan_file import reworded
from heldin.record.planted import Condition, unmet


def migrated(content: dict[str, Any]) -> dict[str, Any]:
    """The record's JSON in the current schema and today's words; ``content`` is not changed."""
    # One version at a time: a new schema needs one step, from the version before it.
    while (step := _STEPS.get(content["schema_version"])) is not None:
        content = step(content)
    training = content.get("training")
    if isinstance(training, dict) and isinstance(training.get("guarantee"), str):
        content = {**content, "training": {**training, "guarantee": reworded(training["guarantee"])}}
    content = {**_undeclared(content), "decision": _headed(content.get("decision"))}
    canaries = content.get("canaries")
    if isinstance(canaries, dict):
        content["canaries"] = {**canaries, "decision": _headed(canaries.get("decision"))}
    return content


def _headed(decision: Any) -> Any:
    """A decision whose headline is in today's words; absent or damaged ones are left as they are."""
    if not isinstance(decision, dict) or not isinstance(decision.get("headline"), str):
        return decision
    return {**decision, "headline": in_todays_words(decision["headline"])}


def _undeclared(content: dict[str, Any]) -> dict[str, Any]:
    """A record whose reasons name each condition that nobody declared, with reasons that count them."""
    if content.get("planted") is None:
        return content
    conditions = [Condition(**its) for its in content["planted"]["conditions"]]
    before = "; ".join(f"{its.note} ({its.condition})" for its in conditions if its.known_by == "not met")
    if not before:
        return content
    now, split, judgement = "; ".join(unmet(conditions)), content["split"], content["judgement"]
    verdicts = [{**its, "reason": its["reason"].replace(before, now)} for its in judgement["verdicts"]]
    return {
        **content,
        "split": {**split, "standing_reason": split["standing_reason"].replace(before, now)},
        "judgement": {**judgement, "verdicts": verdicts},
    }


def _from_3(old: dict[str, Any]) -> dict[str, Any]:
    """Trials became trainings, populations subjects; a judgement counts its users.

    Exit codes follow from the verdicts and are not kept.
    """
    new = {name: value for name, value in old.items() if name != "trials"}
    trainings = old.get("trials")
    new |= {"schema_version": 4, "kind": "trainings" if old.get("kind") == "trials" else old.get("kind")}
    new["trainings"] = trainings
    training = old.get("training")
    if isinstance(training, dict):
        new["training"] = {**training, "guarantee": training["guarantee"].replace(*_GUARANTEE)}
    judgement = old.get("judgement")
    # Absent or damaged parts are left as they are: validation names them (``read_record``).
    if isinstance(judgement, dict):
        of_trainings = old.get("kind") == "trials"
        new["judgement"] = {
            **{name: [_with_subjects(its, of_trainings) for its in judgement.get(name, [])] for name in _LABELLED},
            "delta": judgement.get("delta"),
            "users": _judged(old),
        }
    config = old.get("config")
    if isinstance(config, dict):
        new["config"] = {("trainings" if name == "trials" else name): value for name, value in config.items()}
    return new


def _from_4(old: dict[str, Any]) -> dict[str, Any]:
    """Documents became texts."""
    new = {("scored_texts" if name == "documents" else name): value for name, value in old.items()}
    config = old.get("config")
    if old.get("kind") == "audit" and isinstance(config, dict):
        new["config"] = {("texts" if name == "documents" else name): value for name, value in config.items()}
    return {**new, "schema_version": 5}


def _from_5(old: dict[str, Any]) -> dict[str, Any]:
    """Utility, the place in a sweep, gradients, memory and p-values came later: null, since nothing can be said."""
    return {**old, "schema_version": 6}


def _from_6(old: dict[str, Any]) -> dict[str, Any]:
    """Planted training sets came later."""
    return {**old, "schema_version": 7}


def _from_7(old: dict[str, Any]) -> dict[str, Any]:
    """What training took came later."""
    return {**old, "schema_version": 8}


def _from_8(old: dict[str, Any]) -> dict[str, Any]:
    """Extraction and the precision of scoring came later: null, since nothing was asked and all scored in float32."""
    return {**old, "schema_version": 9}


def _from_9(old: dict[str, Any]) -> dict[str, Any]:
    """Exposure of canary users' marks came later: null where it would stand."""
    return {**old, "schema_version": 10}


# reasons as schema 3 had them and as they are given today, so that heldin verify finds them equal
_REWORDED = (
    ("needs independent trials, one training per score;", "needs independent trainings, one for each score;"),
    ("independent trials", "independent trainings"),
    ("needs two trials of each group", "needs two trainings of each group"),
    (" trials of a group", " trainings of a group"),
    ("nobody says how membership was assigned", "how membership was assigned is not stated"),
    (": as if the conditions held, ", "; if the conditions held: "),
)
_GUARANTEE = (
    "the batch is clipped as one, which bounds no unit's influence",
    "the batch is clipped as one, so a unit may change a step by twice the clip norm",
)
_OF_TRAININGS = ((" users could ", " trainings could "),)
_LABELLED = ("bounds", "refused", "verdicts")
_STEPS: dict[Any, Callable[[dict[str, Any]], dict[str, Any]]] = {
    3: _from_3,
    4: _from_4,
    5: _from_5,
    6: _from_6,
    7: _from_7,
    8: _from_8,
    9: _from_9,
}
MIGRATED = tuple(sorted(_STEPS))


def _with_subjects(old: dict[str, Any], of_trainings: bool) -> dict[str, Any]:
    new = {name: value for name, value in old.items() if name not in ("population", "exit_code")}
    if isinstance(new.get("reason"), str):
        for before, now in (*_REWORDED, *(_OF_TRAININGS if of_trainings else ())):
            new["reason"] = new["reason"].replace(before, now)
    return {**new, "subjects": "worst-case user" if of_trainings else old.get("population", "real users")}


def _judged(old: dict[str, Any]) -> int:
    """Users, or trainings, whose scores were judged: those on both sides, and canary users."""
    split, canaries = old.get("split") or {}, old.get("canaries") or {}
    return sum(part.get(side, 0) for part in (split, canaries) for side in ("held_in", "held_out"))
