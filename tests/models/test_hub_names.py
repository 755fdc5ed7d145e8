"""Models by hub name, from a hub cache on disk as the hub's own client leaves it: no hub is reached."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FIRST, SECOND = "a" * 40, "b" * 40
SCRIPT = """
import sys
from heldin.base.errors import InputError
from heldin.models.opening import load_language_model
from heldin.models.model_names import fingerprint_of, require_model
for revision in (None, "v2", "{second}"):
    print(load_language_model("me/tiny", revision=revision).fingerprint)
load_language_model("me/pinned", revision="{second}")  # of which the cache has no branch
require_model("me/tiny")
for ask in (require_model, fingerprint_of, load_language_model):
    try:
        ask("me/absent")
    except InputError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_hub_name_is_loaded_and_its_fingerprint_is_that_of_the_commit(make_lm, tmp_path):
    hub = tmp_path / "hub" / "models--me--tiny"
    for commit, seed in ((FIRST, 1), (SECOND, 2)):
        lm = make_lm(seed)
        lm.model.save_pretrained(hub / "snapshots" / commit)
        lm.tokenizer.save_pretrained(hub / "snapshots" / commit)
    for name, commit in (("main", FIRST), ("v2", SECOND)):
        (hub / "refs").mkdir(exist_ok=True)
        (hub / "refs" / name).write_text(commit, encoding="utf-8")
    pinned = tmp_path / "hub" / "models--me--pinned" / "snapshots"
    shutil.copytree(hub / "snapshots" / SECOND, pinned / SECOND)
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": f"{root / 'src'}:{root}",
    }
    command = [sys.executable, "-c", SCRIPT.format(second=SECOND)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    main, branch, commit, *absent = done.stdout.splitlines()
    assert main != branch
    assert branch == commit
    assert len(absent) == 3
    assert all("model 'me/absent': " in line for line in absent)
    # Nobody asked the hub: that it has no such model is not known.
    assert "HF_HUB_OFFLINE" in absent[0]
