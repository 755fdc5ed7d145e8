"""What a training took, in a record and in words; records of the schema before are read."""

import json

from heldin.base.artefacts import write_document
from heldin.record.document import EffortFacts, read_record
from heldin.reports.record_report import list_facts, took
from tests.refusals import names, refused

EFFORT = EffortFacts(
    precisions=["fp32", "bf16"],
    devices=["CPU (x86_64)", "NVIDIA H100"],
    processes=2,
    tokens=1_234_567,
    step_seconds=100.0,
    tokens_per_second=12345.7,
    gradients_per_second=99.5,
    peak_memory=3 * 2**30,
    ways=["loop"],
    notices=["one backward pass per unit: layer 'x' has no rule"],
)


def test_in_words():
    tokens, rates, where, processes, memory, notice = took(EFFORT).split("; ")
    assert names(tokens, "1,234,567", "100 s")
    assert names(rates, "12,346 tokens", "99.5 gradients")
    assert names(where, "fp32", "bf16", "CPU (x86_64)", "NVIDIA H100")
    assert names(processes, "2 processes")
    assert names(memory, "3.0 GiB")
    assert [notice] == EFFORT.notices
    alone = EFFORT.model_copy(
        update={"processes": 1, "tokens_per_second": None, "peak_memory": None, "notices": [], "precisions": ["fp32"]}
    )
    tokens, where = took(alone).split("; ")
    assert names(tokens, "1,234,567", "100 s")
    assert names(where, "fp32", "CPU (x86_64)", "NVIDIA H100")
    assert "bf16" not in where


def test_a_record_says_what_training_took(finished, tmp_path):
    record = read_record(finished / "record.json")
    assert record.effort.tokens > 0
    assert "training took" in dict(list_facts(record).pairs)
    damaged = json.loads((finished / "record.json").read_text(encoding="utf-8")) | {"effort": {"tokens": 1}}
    write_document(tmp_path / "record.json", {name: value for name, value in damaged.items() if name != "sha256"})
    with refused(by=read_record, naming=("record.json", "effort.precisions")):
        read_record(tmp_path / "record.json")
