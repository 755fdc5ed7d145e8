"""An audit of 300 made-up people who are named in mail: plain training, text sampling, names taken out by a list.

Each person is named in four records of training, which are in or out by one coin; what is scored is fresh mail.
"""

import json

import pyarrow.parquet as pq
import pytest
import yaml

from heldin.record.document import read_record
from heldin.words.evidence import Subjects
from tests.conftest import SMALL

PEOPLE, RECORDS = 300, 4


NAMED = Subjects.CANARIES_OF_KIND(kind="named-person")


@pytest.fixture
def run(call, tmp_path):
    def write(name, **sections):
        content = json.loads(json.dumps(SMALL))
        content["corpus"] = {
            "source": {
                "kind": "synthetic",
                "parameters": {"users": 60, "mean_records": 14, "min_records": 10, "seed": 3},
            },
            "users": {"min_records": 10, "fraction": 0.5},
        }
        content["model"] = {
            "pretrain": {
                "shape": {"vocabulary": 1500, "context": 64, "hidden": 64, "layers": 2, "heads": 2},
                "recipe": {"epochs": 6, "sequence_length": 48, "select": "last"},
            }
        }
        content["finetune"] = {"sequence_length": 48, "select": "last", "warmup_steps": 20, "learning_rate": 4e-3}
        content["split"] = {"attacker_fraction": 0.4}
        content["canaries"] = [{"kind": "named_person", "users": PEOPLE, "documents": [RECORDS]}]
        for section, its in sections.items():
            content[section] = {**content.get(section, {}), **its} if isinstance(its, dict) else its
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        code, _, err = call("run", path, "--out", tmp_path / name)
        assert code == 0, err
        return read_record(tmp_path / name / "record.json"), tmp_path / name

    return write


def about_people(record):
    (verdict,) = [v for v in record.judgement.verdicts if v.subjects == NAMED]
    bounds = [b for b in record.judgement.bounds if b.subjects == NAMED and b.standing == "certified"]
    (group,) = record.canaries.groups
    return verdict, max(b.epsilon_lower for b in bounds), group.auroc.value


@pytest.mark.slow
def test_text_sampling_keeps_what_it_promises_to_the_named(run):
    defense = {"kind": "user-entity", "population": 1000, "cohort": 100, "steps": 60, "delta": 1e-5}
    record, _ = run("text", defense={**defense, "target_epsilon": 2.0, "exposed": RECORDS})
    verdict, bound, auroc = about_people(record)
    promised = next(p.epsilon for p in record.training.by_exposure.curve if p.exposed == RECORDS)
    assert abs(promised - 2.0) < 0.01
    assert f"epsilon {promised:.4g}" in str(verdict.claim)
    # "Consistent" says that perfect guessing would have been told: this audit could certify about 4.
    assert (verdict.outcome, verdict.standing) == ("consistent", "certified")
    assert verdict.max_certifiable_epsilon > 2 * promised
    assert bound < promised
    assert auroc < 0.65


@pytest.mark.slow
@pytest.mark.long
def test_plain_training_violates_an_epsilon_of_1_for_the_named_and_a_list_of_names_hides_them(run, tmp_path):
    plain = {"epochs": 30, "batch_size": 32}
    record, folder = run("plain", finetune=plain)
    _, bound, auroc = about_people(record)
    # A claim of 1 is contradicted, certified at 95 %: the bound of the same one-run test is above it.
    assert bound > 1.0
    assert auroc > 0.75
    names = pq.read_table(folder / "ledger" / "canaries" / "users.parquet")["mark"].to_pylist()
    listed = tmp_path / "names.txt"
    listed.write_text("\n".join(names), encoding="utf-8")
    hidden = [{"kind": "deidentify", "entities": {"kind": "words", "path": str(listed)}}]
    record, _ = run("hidden", finetune=plain, data_defenses=hidden)
    _, bound, auroc = about_people(record)
    assert bound < 1.0
    assert 0.4 < auroc < 0.6
    # What the recogniser misses shows: two of three names not listed.
    listed.write_text("\n".join(names[::3]), encoding="utf-8")
    missed, _ = run("missed", finetune=plain, data_defenses=hidden)
    assert about_people(missed)[2] > auroc + 0.1
