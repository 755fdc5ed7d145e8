"""User names stay out of the record."""

from heldin.record.document import masked, without_names


def test_patterns_are_counted_and_commands_lose_their_values():
    config = {"corpus": {"users": {"include": ["ann@x"], "exclude": [], "min_records": 4}}, "name": "x"}
    assert masked(config) == {
        "corpus": {"users": {"include": "1 pattern(s)", "exclude": "0 pattern(s)", "min_records": 4}},
        "name": "x",
    }
    command = "heldin run a.yaml --set 'corpus.users.exclude=[ann@x, bob@x]' --set finetune.epochs=3"
    assert without_names(command) == "heldin run a.yaml --set corpus.users.exclude=... --set finetune.epochs=3"
    for value in (
        "corpus.users={include: [ann]}",
        "corpus={users: {exclude: [ann]}}",
        "corpus.public_validation={include: [ann]}",
        "attack.references=[{kind: public, users: {include: [ann]}}]",
        "attack={references: [{kind: public, users: {include: [ann]}}]}",
    ):
        assert "ann" not in without_names(f"heldin run a.yaml --set '{value}'")
    assert "[gpt2]" in without_names("heldin run a.yaml --set 'attack.references=[gpt2]'")
