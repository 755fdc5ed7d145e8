from heldin_poem import Poem

from heldin.testing.canaries import check_canaries


def test_it_makes_what_every_kind_of_canary_users_must():
    check_canaries(Poem(kind="heldin_poem:Poem", users=4, documents=(3, 2)))
