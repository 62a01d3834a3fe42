"""How the tests of this folder put arrays into a backend and get them out again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cleave.compute.backend import Array, Backend
from cleave.compute.elements import Elements, decode, encode, from_bytes, to_bytes
from cleave.core.matrix import DType, Region
from cleave.core.program import Op, Program, Ref


def put(backend: Backend, values: Elements, dtype: DType) -> Array:
    """A 2-D array of the backend with these values."""
    array = backend.empty(*values.shape, dtype)
    whole = Region(0, values.shape[0], 0, values.shape[1])
    backend.write(array, whole, to_bytes(encode(values, dtype)))
    return array


def get(backend: Backend, array: Array, dtype: DType) -> Elements:
    """The array's values as they come over the wire, in a type that numpy computes in."""
    return decode(from_bytes(backend.read(array, dtype), tuple(array.shape), dtype))


def call(
    backend: Backend,
    name: str,
    tensors: Sequence[Elements | None],
    *settings: object,
    shapes: Sequence[tuple[int, ...] | None] = (),
    dtype: DType = DType.F32,
    n_results: int = 1,
) -> list[Elements]:
    """One op on tensors, each of them given its shape back by a view; results in ``dtype``."""
    given = [x for x in tensors if x is not None]
    inputs = [put(backend, *_flat(x, dtype)) for x in given]
    views = [Op("view", (Ref(i), x.shape)) for i, x in enumerate(given)]
    numbers = iter(range(len(given), 2 * len(given)))
    arguments = tuple(None if x is None else Ref(next(numbers)) for x in tensors)
    op = Op(name, (*arguments, *settings), n_results=n_results)  # type: ignore[arg-type]
    first = 2 * len(given)
    program = Program(len(given), (*views, op), tuple(range(first, first + n_results)))
    return [get(backend, result, dtype) for result in backend.run(program, inputs)]


def _flat(x: Elements, dtype: DType) -> tuple[Elements, DType]:
    return x.reshape(1, -1), DType.BOOL if x.dtype == np.bool_ else dtype
