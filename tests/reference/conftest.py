"""Set up for comparisons with transformers."""

import os

# Both count only before the libraries are imported. No test asks a hub; and torch's threads sleep while they wait,
# because on a machine with other work spinning makes generate() five times slower.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def two_threads():
    torch.set_num_threads(2)
