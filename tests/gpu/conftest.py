"""A GPU: a real one, or where there is none one that is pretended."""

import contextlib

import pytest
import torch

from tests.gpu.pretended import pretend

REAL = pytest.param("real", marks=pytest.mark.gpu)


@pytest.fixture(params=[REAL, "pretended"])
def gpu(request, monkeypatch):
    if request.param == "real" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    with pretend(monkeypatch) if request.param == "pretended" else contextlib.nullcontext():
        yield torch.device("cuda")
    torch.set_float32_matmul_precision("highest")
