"""Worker processes: quiet at their end."""

import subprocess
import sys

SCRIPT = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from heldin.base.machine import start_worker

class Held:
    def __del__(self):
        print("held_until_the_end", file=sys.stderr, flush=True)

def work(number):
    global held
    held = Held()
    print("worked", flush=True)
    return number + 1

if __name__ == "__main__":
    initializer = start_worker if sys.argv[1] == "quiet" else None
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer) as pool:
        print(list(pool.map(work, [1, 2])))
"""


def test_a_worker_ends_without_what_libraries_say_while_python_is_taken_apart(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = {
        how: subprocess.run([sys.executable, str(script), how], capture_output=True, text=True)
        for how in ("loud", "quiet")
    }
    assert [(its.returncode, its.stdout) for its in done.values()] == [(0, "worked\nworked\n[2, 3]\n")] * 2
    # The first object goes when the second comes.
    assert done["loud"].stderr.count("held_until_the_end") == 2
    assert done["quiet"].stderr.count("held_until_the_end") == 1
