"""Processes that work for this one."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.process import BaseProcess


def start_worker() -> None:
    """Prepare a worker process: only its parent handles Ctrl-C, it does not outlive its parent, and it ends quietly."""
    # Ctrl-C reaches every process of the terminal's group: each worker would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    # If the parent is killed, nobody else ends a worker in the middle of its work.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    atexit.register(_leave)


def _leave() -> None:
    # Its work is done and sent. While Python takes itself apart, libraries would print what they still hold.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    # sys.exit in a thread ends that thread alone.
    os._exit(1)
