"""Made-up people as canaries: one name in all of one's records and nobody else's, and the claim of so many records."""

import pytest

from heldin.bounds.plan_claims import claims_of, exposed_claims
from heldin.canaries.named_person import made_up_name, named_people
from heldin.corpus.entities.spans import canonical
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.guarantees import ceiling_of
from heldin.stages.sides.panels import claims_by_kind
from tests.defenses.test_text_sampling import text_sampling, uncapped
from tests.made_mechanisms import els, uls
from tests.refusals import refused

NAMES = [f"canary/named_person/0/4/{i:05d}" for i in range(40)]


@pytest.fixture(scope="module")
def people():
    return named_people(NAMES, documents=4, records=7, seed=3)


def test_every_record_names_its_person_near_the_beginning_and_no_other(people):
    marks = [user.canary.mark for user in people]
    sought = {mark: canonical(mark) for mark in marks}
    assert len(set(sought.values())) == len(NAMES)
    for user in people:
        assert (user.canary.kind, user.canary.documents, user.canary.source) == ("named_person", 4, None)
        assert len({record.text for record in user.records}) == 7
        for record in user.records:
            text = canonical(record.text)
            named = [mark for mark in marks if sought[mark] in text]
            assert named == [user.canary.mark]
            before = record.text[: record.text.index(user.canary.mark)]
            assert before.count(". ") <= 2


def test_without_the_name_nothing_tells_people_apart(people):
    """The sentences about them come from one stock, whoever is named."""
    sentences = set()
    for user in people:
        for record in user.records:
            at = record.position
            sentence = record.text[at : record.text.index(".", at) + 1].replace(user.canary.mark, "{}")
            sentences.add(sentence)
    assert len(sentences) == 6


def test_a_person_is_a_function_of_the_name_and_the_seed(people):
    again = named_people(NAMES[5:7], documents=4, records=7, seed=3)
    assert again == people[5:7]
    assert named_people(NAMES[5:7], documents=4, records=7, seed=4)[0].canary.mark != again[0].canary.mark


def test_names_that_run_out_are_told(monkeypatch):
    monkeypatch.setattr("heldin.canaries.named_person.made_up_name", lambda dice: "Tavo Brunelk")
    with refused(by=named_people, naming="2"):
        named_people(NAMES[:2], documents=1, records=2, seed=0)


def test_people_are_claimed_at_the_epsilon_of_their_records_and_not_of_a_user(people):
    canaries = {user.canary.user: user.canary for user in people}
    for mechanism in (text_sampling(noise_multiplier=8.0), uncapped(noise_multiplier=8.0)):
        ((claim,),) = claims_by_kind(mechanism, canaries).values()
        assert claim.epsilon == mechanism.epsilon_at(4) == exposed_claims(mechanism, 4)[0].epsilon
        assert claim.ceiling.auroc == ceiling_of(PoissonGaussian(8.0, 50 / 946, 4), 50, 1e-5).auroc
    assert claims_of(text_sampling(noise_multiplier=8.0))[0].epsilon > claim.epsilon
    # Of more records than the cap leaves to an author, no more are trained on.
    capped = text_sampling(noise_multiplier=8.0, group_size=3)
    assert claims_by_kind(capped, canaries)["named_person"][0].epsilon == capped.epsilon_at(3)
    # Other mechanisms promise canary users what they promise users.
    for mechanism in (uls(), els()):
        (found,) = claims_by_kind(mechanism, canaries).values()
        assert [claim.label for claim in found] == [claim.label for claim in claims_of(mechanism)]
        assert found


def test_made_up_names_are_two_words_of_letters():
    import random

    for seed in range(50):
        first, last = made_up_name(random.Random(seed)).split()
        assert (first + last).isalpha()
        assert first.istitle()
        assert last.istitle()
