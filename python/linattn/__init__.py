# SPDX-License-Identifier: Apache-2.0
"""Linear-attention kernels: KDA, GDN, GLA, Lightning and their relatives.

Drop-in doors with the parameters of flash-linear-attention 0.6.0 (PyTorch; docs/fla.md), doors for servers
(docs/serving.md), and under them the native doors `forward` and `step` (PyTorch, NumPy, CuPy and eager JAX).
Importing this package imports none of them.
"""

from . import _native
from ._call import commit, forward, replay_size, step
from ._fused import Conv, Norm
from ._problem import Problem, explain, implementations, set_threads
from .decode import (
    fused_sigmoid_gating_delta_rule_update,
    kda_decode,
    kda_decode_mtp,
    kda_packed_decode,
    linear_attention_decode,
)
from .delta_product import chunk_gated_delta_product
from .delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
from .gdn import (
    chunk_gated_delta_rule,
    chunk_gdn,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_gdn,
)
from .gdn2 import chunk_gdn2, fused_recurrent_gdn2
from .gla import chunk_gla, chunk_simple_gla, fused_recurrent_gla, fused_recurrent_simple_gla
from .kda import chunk_kda, fused_recurrent_kda
from .lightning import (
    chunk_lightning_attn,
    chunk_retention,
    fused_recurrent_lightning_attn,
    fused_recurrent_retention,
)
from .linear_attn import chunk_linear_attn, fused_recurrent_linear_attn
from .op import OPS, Op
from .serving import fused_recurrent_gated_delta_rule_fwd, fused_recurrent_kda_fwd

__version__ = str(_native.version())

__all__ = [
    "OPS",
    "Conv",
    "Norm",
    "Op",
    "Problem",
    "chunk_delta_rule",
    "chunk_gated_delta_product",
    "chunk_gated_delta_rule",
    "chunk_gdn",
    "chunk_gdn2",
    "chunk_gla",
    "chunk_kda",
    "chunk_lightning_attn",
    "chunk_linear_attn",
    "chunk_retention",
    "chunk_simple_gla",
    "commit",
    "explain",
    "forward",
    "fused_recurrent_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gated_delta_rule_fwd",
    "fused_recurrent_gdn",
    "fused_recurrent_gdn2",
    "fused_recurrent_gla",
    "fused_recurrent_kda",
    "fused_recurrent_kda_fwd",
    "fused_recurrent_lightning_attn",
    "fused_recurrent_linear_attn",
    "fused_recurrent_retention",
    "fused_recurrent_simple_gla",
    "fused_sigmoid_gating_delta_rule_update",
    "implementations",
    "kda_decode",
    "kda_decode_mtp",
    "kda_packed_decode",
    "linear_attention_decode",
    "replay_size",
    "set_threads",
    "step",
]
