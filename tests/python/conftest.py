# SPDX-License-Identifier: Apache-2.0
"""Every allocation starts as NaN, as fault entries B-11 and V-02 ask; `no_poison` is for what traces torch.empty."""

import numpy
import pytest
import torch
import torch._dynamo
from linattn.testing import poison


def pytest_configure(config):
    # torch.compile looks functions up by identity in a table that must be made before one is replaced.
    torch._dynamo.trace_rules.get_torch_obj_rule_map()
    config.addinivalue_line("markers", "no_poison: leave torch.empty alone")


@pytest.fixture(autouse=True)
def poisoned_memory(request, monkeypatch):
    if request.node.get_closest_marker("no_poison"):
        return

    def poisoned(allocate):
        return lambda *args, **kwargs: poison(allocate(*args, **kwargs))

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
    monkeypatch.setattr(numpy, "empty", poisoned(numpy.empty))
    torch.manual_seed(0)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(1)
