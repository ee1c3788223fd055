# SPDX-License-Identifier: Apache-2.0
"""A KDA layer learns a sentence by heart. PyTorch; the gate and the norms are in the kernel."""

import linattn
import torch
from torch import nn


class KDA(nn.Module):
    def __init__(self, width: int, heads: int, dim: int) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        self.qkvg = nn.Linear(width, 4 * heads * dim, bias=False)
        self.beta = nn.Linear(width, heads, bias=False)
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.full((heads * dim,), -2.0))
        self.out = nn.Linear(heads * dim, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Four strided views of one projection; nothing is copied.
        q, k, v, g = self.qkvg(x).unflatten(-1, (4, self.heads, self.dim)).unbind(2)
        o, _ = linattn.chunk_kda(
            q,
            k,
            v,
            g,
            self.beta(x),
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            use_gate_in_kernel=True,
            use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
        )
        return self.out(o.flatten(2))


TEXT = b"a state is what a sequence leaves behind; a gate is how much of it stays. " * 4


def main(steps: int = 40, length: int = 48) -> tuple[float, float]:
    torch.manual_seed(0)
    text = torch.tensor(list(TEXT))
    model = nn.Sequential(nn.Embedding(128, 64), KDA(64, 2, 16), nn.Linear(64, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        begin = torch.randint(len(text) - length - 1, (8, 1))
        window = text[begin + torch.arange(length + 1)]
        logits = model(window[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:3}  loss {loss.item():.3f}")
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
