"""Transformer decoder: queries that attend to an encoder's tokens (Vaswani et al. 2017, 3.2.3).

Shapes: B batch, Q queries, T tokens of the encoder (the memory), D width, M the memory's width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.nn.vit import MLP


class CrossAttention(nn.Module):
    """Computes softmax(Q Kᵀ / √d_head) V in heads; Q of one sequence, K and V of another."""

    def __init__(self, dim: int, *, memory_dim: int, num_heads: int) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"dim={dim} is not a multiple of num_heads={num_heads}")
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(memory_dim, dim)
        self.v = nn.Linear(memory_dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(
        self,
        queries_BQD: Tensor,
        memory_BTM: Tensor,
        *,
        query_pos: Tensor | float = 0.0,
        memory_pos: Tensor | float = 0.0,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Maps (B, Q, D) and (B, T, M) to (B, Q, D).

        Position embeddings are added to the inputs of Q and K, not of V (Carion et al. 2020,
        section A.4). ``attn_mask``, bool (B, 1, Q, T), is False where a query must not attend;
        each query needs at least one True.
        """
        q = self._split(self.q(queries_BQD + query_pos))
        k = self._split(self.k(memory_BTM + memory_pos))
        v = self._split(self.v(memory_BTM))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def _split(self, tokens: Tensor) -> Tensor:
        """Reshapes (B, T, D) to (B, heads, T, D / heads)."""
        return tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class DecoderLayer(nn.Module):
    """Self-attention of the queries, cross-attention to the memory, MLP: each x + f(LN x)."""

    def __init__(self, dim: int, *, memory_dim: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.self_attn = CrossAttention(dim, memory_dim=dim, num_heads=num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.cross_attn = CrossAttention(dim, memory_dim=memory_dim, num_heads=num_heads)
        self.norm3 = nn.LayerNorm(dim)
        self.mlp = MLP(dim, hidden=4 * dim)

    def forward(
        self,
        queries_BQD: Tensor,
        memory_BTM: Tensor,
        *,
        query_pos: Tensor | float = 0.0,
        memory_pos: Tensor | float = 0.0,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Maps (B, Q, D) to (B, Q, D); arguments as for :meth:`CrossAttention.forward`."""
        x = queries_BQD
        y = self.norm1(x)
        x = x + self.self_attn(y, y, query_pos=query_pos, memory_pos=query_pos)
        x = x + self.cross_attn(
            self.norm2(x),
            memory_BTM,
            query_pos=query_pos,
            memory_pos=memory_pos,
            attn_mask=attn_mask,
        )
        return x + self.mlp(x, norm=self.norm3)


class TokenDecoder(nn.Module):
    """Decoder layers whose queries attend to the tokens of an encoder.

    The queries of the first layer are ``num_queries`` learnable tokens with learnable positions
    (object queries, Carion et al. 2020), whose outputs are a set; or, if that is None, the
    encoder's tokens, so that there is an output token for each of them and D must be M. Each
    further layer takes the output of the previous one.
    """

    def __init__(
        self, dim: int, *, memory_dim: int, num_layers: int, num_heads: int, num_queries: int | None
    ) -> None:
        super().__init__()
        if num_queries is None and dim != memory_dim:
            raise ValueError(f"dim={dim} must be memory_dim={memory_dim} without learned queries")
        self.queries = self.codes = None
        if num_queries is not None:
            self.queries = nn.Parameter(torch.zeros(1, num_queries, dim))
            self.codes = nn.Parameter(torch.zeros(1, num_queries, dim))
            nn.init.trunc_normal_(self.queries, std=0.02)
            nn.init.normal_(self.codes)  # as large as normalised tokens, so that queries differ
        self.layers = nn.ModuleList(
            DecoderLayer(dim, memory_dim=memory_dim, num_heads=num_heads) for _ in range(num_layers)
        )

    def start(self, memory_BTM: Tensor) -> tuple[Tensor, Tensor | float]:
        """Returns the queries of the first layer, (B, Q, D), and their position embeddings."""
        if self.queries is None or self.codes is None:
            return memory_BTM, 0.0
        return self.queries.expand(memory_BTM.shape[0], -1, -1), self.codes

    def forward(self, memory_BTM: Tensor, *, memory_pos: Tensor | float = 0.0) -> Tensor:
        """Maps (B, T, M) to the queries after the last layer, (B, Q, D)."""
        x, codes = self.start(memory_BTM)
        for layer in self.layers:
            x = layer(x, memory_BTM, query_pos=codes, memory_pos=memory_pos)
        return x
