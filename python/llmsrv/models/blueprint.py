"""What an architecture file produces: the model as data, and where each of its weights comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llmsrv._core import ModelSpec


@dataclass(frozen=True)
class WeightSource:
    """The checkpoint tensor that holds one weight. Row r of the weight is row rows[r] of the tensor, or r when None."""

    tensor: str
    rows: NDArray[np.int64] | None = None
    offset: float = 0.0  # added to each stored value; for vectors only


@dataclass(frozen=True)
class Blueprint:
    """One model of one checkpoint, before any data is read."""

    architecture: str  # as in config.json, for example "LlamaForCausalLM"
    spec: ModelSpec
    sources: Mapping[str, WeightSource]  # by the core's weight names
    # Tensors that need no loading because the spec already says what they hold.
    derived: frozenset[str] = frozenset()
    # Tensors that are allowed only as copies of another tensor: copy → original.
    copies: Mapping[str, str] = field(default_factory=dict)
