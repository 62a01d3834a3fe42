"""The operations of a training step as `Work`: a linear layer's GEMMs, attention, its gradient.

A GEMM ``C (m, n) = A (m, k) @ B (k, n)`` is a box of m x n x k multiply-adds. Its work rectangle is
any two of the three axes; the third stays whole in every tile, but over m x n the planner may cut k
in slabs. Cutting k makes partial sums, which the server adds. So each GEMM has three forms, and the
planner takes the one that is done first.
"""

from __future__ import annotations

from dataclasses import dataclass

from cleave.core.matrix import Matrix
from cleave.core.program import Extent, Op, Program, Ref
from cleave.core.work import Along, Operand, Result, Slabs, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """``out (m, n) = op(a) @ op(b)``, where an op is nothing or a transposition.

    Attributes:
        a: Stored as ``(m, k)``, or as ``(k, m)`` if ``a_transposed``.
        b: Stored as ``(k, n)``, or as ``(n, k)`` if ``b_transposed``.
        out: Stored as ``(m, n)``.
    """

    name: str
    a: Matrix
    b: Matrix
    out: Matrix
    a_transposed: bool = False
    b_transposed: bool = False
    priority: int = 0

    @property
    def m(self) -> int:
        """Rows of the result."""
        return self.out.n_rows

    @property
    def n(self) -> int:
        """Columns of the result."""
        return self.out.n_cols

    @property
    def k(self) -> int:
        """The inner size."""
        return self.a.n_rows if self.a_transposed else self.a.n_cols

    @property
    def flops(self) -> float:
        """Floating-point operations: two per multiply-add."""
        return 2.0 * self.m * self.n * self.k

    def forms(self) -> tuple[Work, ...]:
        """The GEMM as work over ``m x n``, over ``k x n`` and over ``m x k``."""
        return (
            self.work(m=Along.ROWS, n=Along.COLS, k=Along.ALL),
            self.work(m=Along.ALL, n=Along.COLS, k=Along.ROWS),
            self.work(m=Along.ROWS, n=Along.ALL, k=Along.COLS),
        )

    def work(self, *, m: Along, n: Along, k: Along) -> Work:
        """The GEMM over the rectangle that two of its axes span.

        Args:
            m: What the rows of the result follow.
            n: What the columns of the result follow.
            k: What the inner axis follows. One of the three is `Along.ALL`; if k is, it is one slab
                (`Work.in_slabs` cuts it in more).
        """
        slabs = Slabs(1, self.n, self.k) if k is Along.ALL else None
        inner = Along.INNER if k is Along.ALL else k
        size = {Along.ALL: 1, Along.ROWS: 1, Along.COLS: 1}
        size.update({m: self.m, n: self.n, k: self.k})
        a_axes = (inner, m) if self.a_transposed else (m, inner)
        b_axes = (n, inner) if self.b_transposed else (inner, n)
        return Work(
            name=self.name,
            n_rows=size[Along.ROWS],
            n_cols=size[Along.COLS],
            inputs=(
                Operand(matrix=self.a, rows=a_axes[0], cols=a_axes[1], slabs=slabs),
                Operand(matrix=self.b, rows=b_axes[0], cols=b_axes[1], slabs=slabs),
            ),
            results=(Result(matrix=self.out, rows=m, cols=n, slabs=slabs),),
            program=_gemm_program(self.a_transposed, self.b_transposed),
            flops_per_cell=2.0 * size[Along.ALL],
            priority=self.priority,
        )


def _gemm_program(a_transposed: bool, b_transposed: bool) -> Program:
    ops: list[Op] = []
    a, b, following = 0, 1, 2
    if a_transposed:
        ops.append(Op("t", (Ref(a),)))
        a, following = following, following + 1
    if b_transposed:
        ops.append(Op("t", (Ref(b),)))
        b, following = following, following + 1
    ops.append(Op("mm", (Ref(a), Ref(b))))
    return Program(n_inputs=2, ops=tuple(ops), outputs=(following,))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Shape and settings of one attention over a batch; queries share keys and values in groups.

    Attributes:
        batch: Sequences.
        kv_heads: Heads of keys and values; each is a column of the work rectangle.
        group: Query heads per KV head.
        q_len: Query positions.
        kv_len: Key positions.
        head_dim: Features of a head in queries and keys.
        value_dim: Features of a head in values and output.
        causal: Position i of the last ``q_len`` keys sees keys up to itself.
        scale: Factor on the scores.
        dropout: Probability that an attention weight is dropped.
        seed: 64-bit key of the dropout mask; the mask depends on it and on global indices alone.
        window: Sees at most this many keys back, itself included; 0 means all.
    """

    batch: int
    kv_heads: int
    group: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int
    causal: bool
    scale: float
    dropout: float = 0.0
    seed: int = 0
    window: int = 0

    @property
    def flops(self) -> float:
        """Of the forward pass: two products per pair of positions, masked pairs counted."""
        pairs = self.batch * self.kv_heads * self.group * self.q_len * self.kv_len
        return 2.0 * pairs * (self.head_dim + self.value_dim)

    @property
    def backward_flops(self) -> float:
        """Of the backward pass: five products, of which one is the recomputed scores."""
        pairs = self.batch * self.kv_heads * self.group * self.q_len * self.kv_len
        return 2.0 * pairs * (3 * self.head_dim + 2 * self.value_dim)

    @property
    def workspace_bytes(self) -> float:
        """Of a sequence and KV head: some of the scores, and all operands and results in fp32."""
        queries = self.group * self.q_len
        scores = 12.0 * queries * min(self.kv_len, 1024)
        return scores + 8.0 * (queries + self.kv_len) * (self.head_dim + self.value_dim)

    def settings(self) -> tuple[float | int | bool | Extent, ...]:
        """The trailing arguments of the ops: causal, scale, window, dropout and the tile's place.

        The last four are the tile's first sequence, its first KV head, and the heads of the whole
        tensor: what an element's global index, and so its dropout, is made from.
        """
        return (
            self.causal,
            self.scale,
            self.window,
            self.dropout,
            self.seed,
            Extent("row0"),
            Extent("col0", self.group),
            self.kv_heads * self.group,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTensors:
    """The matrices of an attention, each ``(batch, heads * positions * features)``.

    Attributes:
        q: Queries, ``(batch, kv_heads * group * q_len * head_dim)``.
        k: Keys, ``(batch, kv_heads * kv_len * head_dim)``.
        v: Values, ``(batch, kv_heads * kv_len * value_dim)``.
        out: Output, ``(batch, kv_heads * group * q_len * value_dim)``.
        lse: fp32 log-sum-exp of the scores, ``(batch, kv_heads * group * q_len)``.
        mask: Which keys may be seen, ``(batch, kv_len)`` bool, or None for all.
    """

    q: Matrix
    k: Matrix
    v: Matrix
    out: Matrix
    lse: Matrix
    mask: Matrix | None


def attention_forward(shape: AttentionShape, tensors: AttentionTensors) -> Work:
    """Fused attention over sequences x KV heads; scores never leave the device."""
    builder = _Attention(shape)
    q = builder.load(tensors.q, shape.group, shape.q_len, shape.head_dim)
    k = builder.load(tensors.k, 1, shape.kv_len, shape.head_dim)
    v = builder.load(tensors.v, 1, shape.kv_len, shape.value_dim)
    mask = builder.load_mask(tensors.mask)
    return builder.work("attention", (q, k, v, mask), (tensors.out, tensors.lse), shape.flops)


def attention_backward(
    shape: AttentionShape,
    tensors: AttentionTensors,
    out_grad: Matrix,
    grads: tuple[Matrix, Matrix, Matrix],
) -> Work:
    """Gradients of queries, keys and values from the gradient of the output; scores are recomputed.

    Args:
        shape: As in the forward pass.
        tensors: As in the forward pass.
        out_grad: Like ``tensors.out``.
        grads: To be written, like ``tensors.q``, ``tensors.k`` and ``tensors.v``.
    """
    builder = _Attention(shape)
    d_out = builder.load(out_grad, shape.group, shape.q_len, shape.value_dim)
    q = builder.load(tensors.q, shape.group, shape.q_len, shape.head_dim)
    k = builder.load(tensors.k, 1, shape.kv_len, shape.head_dim)
    v = builder.load(tensors.v, 1, shape.kv_len, shape.value_dim)
    out = builder.load(tensors.out, shape.group, shape.q_len, shape.value_dim)
    lse = builder.load(tensors.lse, shape.group, shape.q_len, None)
    mask = builder.load_mask(tensors.mask)
    return builder.work(
        "attention_backward", (d_out, q, k, v, out, lse, mask), grads, shape.backward_flops
    )


class _Attention:
    """Collects inputs and the ops that give them their heads back."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._loads: list[tuple[Operand, tuple[int | Extent, ...] | None]] = []

    def load(self, matrix: Matrix, group: int, positions: int, features: int | None) -> int:
        """Add an input seen as ``(sequences, heads, positions[, features])``; its place."""
        sizes: tuple[int | Extent, ...] = (Extent("n_rows"), Extent("n_cols", group), positions)
        if features is not None:
            sizes += (features,)
        self._loads.append((self._operand(matrix), sizes))
        return len(self._loads) - 1

    def load_mask(self, mask: Matrix | None) -> int | None:
        """Add the mask, whose columns are keys and not heads; its place, None if there is none."""
        if mask is None:
            return None
        self._loads.append((Operand(matrix=mask, rows=Along.ROWS, cols=Along.ALL), None))
        return len(self._loads) - 1

    def work(
        self,
        op: str,
        places: tuple[int | None, ...],
        results: tuple[Matrix, ...],
        flops: float,
    ) -> Work:
        """The finished work; ``places`` are the op's tensor arguments in order."""
        shape = self._shape
        n_inputs = len(self._loads)
        ops: list[Op] = []
        values: list[int] = []
        for place, (_, sizes) in enumerate(self._loads):
            if sizes is None:
                values.append(place)
            else:
                values.append(n_inputs + len(ops))
                ops.append(Op("view", (Ref(place), sizes)))
        tensors = tuple(None if place is None else Ref(values[place]) for place in places)
        first = n_inputs + len(ops)
        ops.append(Op(op, (*tensors, *shape.settings()), n_results=len(results)))
        outputs: list[int] = []
        for i in range(len(results)):
            outputs.append(first + len(results) + i)
            ops.append(Op("view", (Ref(first + i), (Extent("n_rows"), -1))))
        return Work(
            name=op,
            n_rows=shape.batch,
            n_cols=shape.kv_heads,
            inputs=tuple(operand for operand, _ in self._loads),
            results=tuple(self._result(matrix) for matrix in results),
            program=Program(n_inputs=n_inputs, ops=tuple(ops), outputs=tuple(outputs)),
            flops_per_cell=flops / max(1, shape.batch * shape.kv_heads),
            workspace_bytes_per_cell=shape.workspace_bytes,
        )

    def _operand(self, matrix: Matrix) -> Operand:
        scale = matrix.n_cols // max(1, self._shape.kv_heads)
        return Operand(matrix=matrix, rows=Along.ROWS, cols=Along.COLS, col_scale=scale)

    def _result(self, matrix: Matrix) -> Result:
        scale = matrix.n_cols // max(1, self._shape.kv_heads)
        return Result(matrix=matrix, rows=Along.ROWS, cols=Along.COLS, col_scale=scale)
