"""A disk cache of one-step privacy-loss distributions. It only saves time: on any problem they are computed again."""

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from heldin.base.errors import InputError
from heldin.base.files import cache_directory, cache_root, private_directory, whole_file
from heldin.defenses.accounting.loss_pmf import LossPair, LossPmf

_VERSION = 1  # of the stored numbers; another one makes every older file a miss


def cached_pair(parameters: dict[str, str], build: Callable[[], LossPair]) -> LossPair:
    """The pair stored under these parameters, or the result of ``build``, which is then stored.

    A file that is damaged, or whose stored parameters differ, is overwritten. A folder that cannot be written to is
    ignored.
    """
    key = json.dumps({"version": _VERSION, **parameters}, sort_keys=True)
    path = cache_root() / "pld" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"
    stored = _read(path, key)
    if stored is not None:
        return stored
    pair = build()
    with contextlib.suppress(OSError, InputError):
        _write(path, key, pair)
    return pair


def _read(path: Path, key: str) -> LossPair | None:
    try:
        # Without pickle: a file in the cache folder must not be able to run code.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            # The file's name is a hash of 128 bits; the parameters inside settle that it is the right pair.
            if str(file["key"]) != key:
                return None
            pair = LossPair(*(_unpack(file[f"{side}_grid"], file[f"{side}_masses"]) for side in ("remove", "add")))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    return pair


def _unpack(grid: np.ndarray, masses: np.ndarray) -> LossPmf:
    width, lowest, infinity, *offset = (float(value) for value in grid)
    # A damaged array can move epsilon either way, also below the truth, so that it is refused rather than trusted.
    total = float(masses.sum()) + infinity
    if masses.ndim != 1 or masses.dtype != np.float64 or not (masses >= 0).all() or not 1 - 1e-9 < total < 1 + 1e-9:
        raise ValueError("not a probability mass function")
    return LossPmf(width, int(lowest), masses, infinity, *offset)


def _write(path: Path, key: str, pair: LossPair) -> None:
    cache_directory()
    private_directory(path.parent)
    arrays = {"key": np.array(key)}
    for side, pmf in (("remove", pair.remove), ("add", pair.add)):
        # (3,), or (4,) on a grid with an offset.
        arrays[f"{side}_grid"] = np.array([pmf.width, pmf.lowest, pmf.infinity, *([pmf.offset] if pmf.offset else [])])
        arrays[f"{side}_masses"] = pmf.masses
    with whole_file(path, private=True) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
