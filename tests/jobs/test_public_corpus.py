"""A base model that another, public corpus pre-trained: its texts alone, and a guarantee that says what it assumes."""

from heldin.base.files import cache_directory
from heldin.base.progress import LineReporter
from heldin.corpus.store import texts_of
from heldin.finetune.pretraining import pretrained_folder
from heldin.jobs.check.check_run import check_run
from heldin.stages.run_config import parse_config
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.train.models import base_model
from heldin.stages.train.plan import assumptions
from heldin.words.guarantee import Assumption
from tests.conftest import SMALL
from tests.refusals import names

QUIET = LineReporter(lambda line: None)
PUBLIC = {"kind": "synthetic", "parameters": {"seed": 77, "users": 12, "mean_records": 5, "min_records": 2}}


def config(source=PUBLIC, **changes):
    model = {"pretrain": {**SMALL["model"]["pretrain"], "source": source}}
    return parse_config({**SMALL, "model": model, **changes}, "test")


def test_the_base_model_sees_the_public_corpus_and_nobody_of_the_runs():
    of_its_own, of_the_run = read_corpus(config(), QUIET), read_corpus(config(None), QUIET)
    assert of_its_own.public.store.fingerprint != of_its_own.store.fingerprint
    texts = of_its_own.public_texts()
    store = of_its_own.public.store
    assert texts == texts_of(store, [row for user in store.users for row in list(store.rows(user))[:6]])
    assert of_its_own.public.users == len(store.users) == 12
    private = {of_its_own.store.record(row).text for row in range(len(of_its_own.store))}
    assert not private & set(texts)
    # The same people are audited: the public corpus takes nobody away.
    assert of_its_own.audited == of_the_run.audited
    name, _ = base_model(config(), of_its_own, QUIET)
    pretrain = config().model.pretrain
    assert name == str(pretrained_folder(texts, pretrain.shape, pretrain.recipe, cache_directory()))


def test_its_users_are_picked_by_the_rule_and_cut_like_others():
    its = config()
    pretrain = its.model.pretrain.model_copy(update={"max_records_per_user": 2})
    short = its.model_copy(update={"model": its.model.model_copy(update={"pretrain": pretrain})})
    assert len(read_corpus(short, QUIET).public.rows) == 24


def test_the_guarantee_says_what_it_takes_for_granted():
    assert assumptions(config()) == (Assumption.PRETRAINING_CORPUS_UNSEEN(entities=None),)
    assert assumptions(config(None))[0].states(Assumption.PUBLIC_USERS)


def test_a_file_that_is_not_there_is_told_by_its_key(tmp_path):
    source = {"kind": "jsonl", "path": str(tmp_path / "none.jsonl")}
    problems = check_run(config(source), tmp_path / "run").problems
    (missing,) = (its for its in problems if its.startswith("model.pretrain.source.path: "))
    assert names(missing, f"'{tmp_path / 'none.jsonl'}'")
