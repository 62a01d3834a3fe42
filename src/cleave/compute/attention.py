"""Attention and its gradient in plain array functions: the same code on numpy and on torch.

Scores exist for one tile at a time (some heads, or some queries of one head), always over every
key that a query can see, so that the softmax needs no second pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cleave.compute.backend import Array
from cleave.compute.philox import keep_mask, kept_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSettings:
    """The trailing arguments of the ops ``attention`` and ``attention_backward``.

    Attributes:
        causal: Query i sees keys up to ``kv_len - q_len + i``.
        scale: Factor on the scores.
        window: A query sees at most this many keys back, its own included; 0 means all.
        dropout: Probability that an attention weight is dropped.
        seed: Key of the dropout mask.
        batch0: First sequence of this tile in the whole tensor.
        head0: First query head of this tile in the whole tensor.
        n_heads: Query heads of the whole tensor.
    """

    causal: bool
    scale: float
    window: int
    dropout: float
    seed: int
    batch0: int
    head0: int
    n_heads: int

    @classmethod
    def of(cls, arguments: tuple[Any, ...]) -> AttentionSettings:
        """The settings from an op's trailing arguments.

        Raises:
            ValueError: If one is out of range.
        """
        causal, scale, window, dropout, seed, batch0, head0, n_heads = arguments
        if min(window, batch0, head0) < 0:
            raise ValueError(
                f"window {window}, batch0 {batch0} and head0 {head0} must be 0 or more"
            )
        return cls(
            causal=causal,
            scale=scale,
            window=window,
            dropout=dropout,
            seed=seed,
            batch0=batch0,
            head0=head0,
            n_heads=n_heads,
        )


def check_shapes(q: Array, k: Array, v: Array, mask: Array | None) -> None:
    """Refuse operands that do not belong together.

    Raises:
        ValueError: If shapes do not fit; it names them.
    """
    fits = (
        len(q.shape) == len(k.shape) == len(v.shape) == 4
        and q.shape[0] == k.shape[0] == v.shape[0]
        and k.shape[1] == v.shape[1] > 0
        and q.shape[1] % k.shape[1] == 0
        and k.shape[2] == v.shape[2]
        and q.shape[3] == k.shape[3]
        and (mask is None or tuple(mask.shape) == (k.shape[0], k.shape[2]))
    )
    if not fits:
        shapes = ", ".join(
            f"{name} {tuple(array.shape)}"
            for name, array in (("q", q), ("k", k), ("v", v), ("mask", mask))
            if array is not None
        )
        raise ValueError(
            f"{shapes}: expected q (batch, group * heads, q_len, head_dim), k and v (batch, heads, "
            "kv_len, head_dim and value_dim), mask (batch, kv_len)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """Cells (pairs of sequence and KV head) x queries, and the keys that those queries can see."""

    cells: slice
    queries: slice
    keys: slice


class Attention:
    """One call's operands, cut into tiles.

    Args:
        xp: numpy or torch.
        q: ``(batch, heads * group, q_len, head_dim)``, fp32 or fp64 like ``k`` and ``v``.
        k: ``(batch, heads, kv_len, head_dim)``.
        v: ``(batch, heads, kv_len, value_dim)``.
        mask: Which keys may be seen, ``(batch, kv_len)`` bool, or None for all.
        settings: The op's trailing arguments.
        max_scores: Scores of a tile; one query's are the least.
    """

    def __init__(
        self,
        xp: Any,
        operands: tuple[Array, Array, Array],
        mask: Array | None,
        settings: AttentionSettings,
        *,
        max_scores: int,
    ) -> None:
        """Give the operands cells, (batch * heads), in place of batch and heads."""
        q, k, v = operands
        self._xp = xp
        self._settings = settings
        self._kept_factor = kept_factor(settings.dropout)
        self._max_scores = max_scores
        self._shape = tuple(q.shape[:3])
        self._batch, self._heads, self._kv_len, _ = k.shape
        self._group = q.shape[1] // self._heads
        self._q = self._queries(q)
        self._k = k.reshape(self._batch * self._heads, *k.shape[2:])
        self._v = v.reshape(self._batch * self._heads, *v.shape[2:])
        self._mask_bias = None
        if mask is not None:
            self._mask_bias = xp.zeros(tuple(mask.shape), dtype=q.dtype)
            self._mask_bias[mask == 0] = -math.inf

    def forward(self) -> tuple[Array, Array]:
        """The output ``(batch, heads * group, q_len, value_dim)`` and the scores' log-sum-exp."""
        xp = self._xp
        out = xp.zeros((*self._q.shape[:3], self._v.shape[-1]), dtype=self._q.dtype)
        lse = xp.zeros(self._q.shape[:3], dtype=self._q.dtype) - math.inf
        for tile in self._tiles():
            weights, values = self._scores(tile), self._v[tile.cells, tile.keys]
            highest = xp.amax(weights, -1, keepdims=True)
            highest = xp.where(highest == -math.inf, xp.zeros_like(highest), highest)
            weights -= highest
            xp.exp(weights, out=weights)
            total = weights.sum(-1, keepdims=True)
            lse[tile.cells, :, tile.queries] = (highest + xp.log(total))[..., 0]
            if self._settings.dropout:
                weights *= self._kept(tile)
            part = xp.matmul(_rows(weights), values)
            part = part.reshape(*weights.shape[:3], values.shape[-1]) * self._kept_factor
            part /= xp.where(total == 0, xp.ones_like(total), total)
            out[tile.cells, :, tile.queries] = part
        return out.reshape(*self._shape, out.shape[-1]), lse.reshape(self._shape)

    def backward(self, d_out: Array, out: Array, lse: Array) -> tuple[Array, Array, Array]:
        """Gradients of queries, keys and values.

        Args:
            d_out: Gradient of the output, shaped like it.
            out: The output, ``(batch, heads * group, q_len, value_dim)``.
            lse: From the forward pass, ``(batch, heads * group, q_len)``.
        """
        xp = self._xp
        d_out, out = self._queries(d_out), self._queries(out)
        lse = self._queries(lse[..., None])
        lse = xp.where(lse == -math.inf, xp.zeros_like(lse), lse)  # no key seen: all weights are 0
        dq, dk, dv = (xp.zeros_like(x) for x in (self._q, self._k, self._v))
        for tile in self._tiles():
            at, of = (tile.cells, slice(None), tile.queries), (tile.cells, tile.keys)
            weights = self._scores(tile)
            weights -= lse[at]
            xp.exp(weights, out=weights)
            d_part = _rows(d_out[at]) * self._kept_factor
            kept = self._kept(tile) if self._settings.dropout else None
            kept_weights = weights if kept is None else weights * kept
            dv[of] += xp.matmul(_rows(kept_weights).swapaxes(-1, -2), d_part)
            del kept_weights
            d_weights = xp.matmul(d_part, self._v[of].swapaxes(-1, -2)).reshape(weights.shape)
            if kept is not None:
                d_weights *= kept
            d_weights -= (d_out[at] * out[at]).sum(-1, keepdims=True)
            d_weights *= weights
            d_weights *= self._settings.scale
            d_scores = _rows(d_weights)
            dq[at] = xp.matmul(d_scores, self._k[of]).reshape(dq[at].shape)
            dk[of] += xp.matmul(d_scores.swapaxes(-1, -2), _rows(self._q[at]))
        keys = (self._batch, self._heads, self._kv_len)
        return (
            dq.reshape(*self._shape, dq.shape[-1]),
            dk.reshape(*keys, dk.shape[-1]),
            dv.reshape(*keys, dv.shape[-1]),
        )

    def _queries(self, x: Array) -> Array:
        cells = self._batch * self._heads
        return x.reshape(cells, self._group, *x.shape[2:])

    def _tiles(self) -> Iterator[_Tile]:
        n_cells, group, q_len = self._q.shape[:3]
        per_query = max(1, group * self._kv_len)
        n_queries = max(1, min(q_len, self._max_scores // per_query))
        step = max(1, self._max_scores // (per_query * n_queries)) if n_queries == q_len else 1
        for cell in range(0, n_cells, step):
            for query in range(0, q_len, n_queries):
                keys = self._visible(query, min(q_len, query + n_queries))
                if keys.start < keys.stop:
                    yield _Tile(
                        cells=slice(cell, min(n_cells, cell + step)),
                        queries=slice(query, min(q_len, query + n_queries)),
                        keys=keys,
                    )

    def _visible(self, first: int, stop: int) -> slice:
        """The keys that at least one of these queries may see."""
        offset = self._kv_len - self._q.shape[2]
        end = min(self._kv_len, offset + stop) if self._settings.causal else self._kv_len
        window = self._settings.window
        return slice(max(0, offset + first - window + 1) if window else 0, end)

    def _scores(self, tile: _Tile) -> Array:
        """Scaled scores, -inf where a key may not be seen: ``(cells, group, queries, keys)``."""
        q = self._q[tile.cells, :, tile.queries] * self._settings.scale
        k = self._k[tile.cells, tile.keys]
        scores = self._xp.matmul(_rows(q), k.swapaxes(-1, -2))
        scores = scores.reshape(*q.shape[:3], k.shape[1])
        if self._settings.causal or self._settings.window:
            scores += self._position_bias(tile)
        if self._mask_bias is not None:
            batch = [cell // self._heads for cell in _range(tile.cells)]
            scores += self._mask_bias[batch][:, None, None, tile.keys]
        return scores

    def _position_bias(self, tile: _Tile) -> Array:
        """0 where a query may see a key by its position, else -inf: ``(queries, keys)``."""
        xp, offset = self._xp, self._kv_len - self._q.shape[2]
        own = xp.arange(offset + tile.queries.start, offset + tile.queries.stop)[:, None]
        key = xp.arange(tile.keys.start, tile.keys.stop)
        bias = xp.zeros((own.shape[0], key.shape[0]), dtype=self._q.dtype)
        if self._settings.causal:
            bias[key > own] = -math.inf
        if self._settings.window:
            bias[key <= own - self._settings.window] = -math.inf
        return bias

    def _kept(self, tile: _Tile) -> Array:
        """The dropout mask of the tile's weights, ``(cells, group, queries, keys)``."""
        settings, (_, group, q_len, _) = self._settings, self._q.shape
        first = settings.batch0 * settings.n_heads + settings.head0
        starts = [
            ((first + batch * settings.n_heads + head * group + member) * q_len + query)
            * self._kv_len
            + tile.keys.start
            for batch, head in (divmod(cell, self._heads) for cell in _range(tile.cells))
            for member in range(group)
            for query in _range(tile.queries)
        ]
        kept = keep_mask(
            self._xp, starts, len(_range(tile.keys)), seed=settings.seed, dropout=settings.dropout
        )
        return kept.reshape(-1, group, len(_range(tile.queries)), len(_range(tile.keys)))


def _range(part: slice) -> range:
    return range(part.start, part.stop)


def _rows(x: Array) -> Array:
    """``(cells, group, rows, features)`` with the group's members below one another."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[3])
