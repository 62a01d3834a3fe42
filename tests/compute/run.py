"""How the tests of this folder put arrays into a backend and get them out again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cleave.compute.backend import Array, Backend
from cleave.compute.cases import Case
from cleave.compute.elements import Elements, decode, encode, from_bytes, to_bytes
from cleave.core.matrix import DType, Region
from cleave.core.program import Op, Program, Ref


def put(backend: Backend, values: Elements, dtype: DType) -> Array:
    """A 2-D array of the backend with these values."""
    array = backend.empty(values.shape[0], values.shape[1], dtype)
    whole = Region(0, values.shape[0], 0, values.shape[1])
    backend.write(array, whole, to_bytes(encode(values, dtype)))
    return array


def get(backend: Backend, array: Array, dtype: DType) -> Elements:
    """The array's values as they come over the wire, in a type that numpy computes in."""
    return decode(from_bytes(backend.read(array, dtype), tuple(array.shape), dtype))


def call(
    backend: Backend,
    name: str,
    tensors: Sequence[Elements | tuple[Elements, DType] | None],
    *settings: object,
    dtype: DType = DType.F32,
    results: Sequence[DType] = (),
) -> list[Elements]:
    """One op on tensors of any shape.

    Args:
        backend: Runs it.
        name: The op's.
        tensors: Its leading arguments; bool, or of ``dtype`` unless said otherwise.
        settings: Its other arguments.
        dtype: Of the tensors.
        results: Of each result; one of ``dtype`` if empty.
    """
    given = [_typed(x, dtype) for x in tensors if x is not None]
    inputs = [put(backend, x.reshape(1, -1), x_dtype) for x, x_dtype in given]
    views = [Op("view", (Ref(i), x.shape)) for i, (x, _) in enumerate(given)]
    numbers = iter(range(len(given), 2 * len(given)))
    arguments = tuple(None if x is None else Ref(next(numbers)) for x in tensors)
    results = results or (dtype,)
    op = Op(name, (*arguments, *settings), n_results=len(results))  # type: ignore[arg-type]
    outputs = tuple(range(2 * len(given), 2 * len(given) + len(results)))
    made = backend.run(Program(len(given), (*views, op), outputs), inputs)
    return [get(backend, x, x_dtype) for x, x_dtype in zip(made, results, strict=True)]


def _typed(x: Elements | tuple[Elements, DType], dtype: DType) -> tuple[Elements, DType]:
    if isinstance(x, tuple):
        return x
    return x, DType.BOOL if x.dtype == np.bool_ else dtype


def run_case(backend: Backend, case: Case) -> str | None:
    """What is wrong with the backend's results of a case, None if nothing is."""
    inputs = [put(backend, block.elements, block.dtype) for block in case.inputs]
    results = backend.run(case.program, inputs)
    return case.check(
        [backend.read(x, dtype) for x, dtype in zip(results, case.output_dtypes, strict=True)]
    )
