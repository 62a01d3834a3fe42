"""Runs programs: checks each op, calls the backend's function for it, frees what is dead.

A program comes from outside. Its names are looked up in tables, never as attributes, and its
arguments are checked before anything sees them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from cleave.compute.backend import Array
from cleave.compute.vocabulary import VOCABULARY
from cleave.core.matrix import Region
from cleave.core.program import Op, Program, Ref
from cleave.errors import DeviceMemoryError, ProgramError, ProtocolError

Function = Callable[..., Any]

_ASKED = re.compile(r"allocate ([\d.]+) ([bkmgtpe])", re.IGNORECASE)


def run_program(
    program: Program, inputs: Sequence[Array], functions: Mapping[str, Function]
) -> list[Array]:
    """The program's outputs; each value is freed right after its last use.

    Args:
        program: Bound, that is without an `Extent`.
        inputs: One array per input of the program.
        functions: The backend's function of each op it has.

    Raises:
        ProgramError: If the program is malformed or an op is unknown or misused.
        MemoryError: If an op found no memory.
    """
    if len(inputs) != program.n_inputs:
        raise ProgramError(f"program takes {program.n_inputs} inputs, but was given {len(inputs)}")
    dead_after = _dead_after(program)
    values: list[Array] = list(inputs)
    for index, op in enumerate(program.ops):
        _append_results(values, index, op, functions)
        for number in dead_after[index]:
            values[number] = None
    return [values[number] for number in program.outputs]


def sizes_without_minus_one(shape: Sequence[int], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of a view with -1 made a number, also where an extent of 0 leaves it open.

    Args:
        shape: Of the array to be viewed.
        sizes: At most one of them -1.

    Raises:
        ValueError: If more than one size is negative.
    """
    if min(sizes, default=0) >= 0:
        return sizes
    if min(sizes) < -1 or sizes.count(-1) > 1:
        raise ValueError(f"sizes are {sizes}, expected at most one -1 and no other negative")
    known = [size for size in sizes if size != -1]
    if 0 in known:
        shape, known = [n for n in shape if n], [n for n in known if n]
    inferred = math.prod(shape) // math.prod(known)
    return tuple(inferred if size == -1 else size for size in sizes)


def check_slice(shape: Sequence[int], dim: int, start: int, stop: int) -> None:
    """Refuse a slice that does not lie inside the array; torch and numpy would bend some.

    Raises:
        ValueError: It says what is wrong.
    """
    _check_dim(shape, dim)
    if not 0 <= start <= stop <= shape[dim]:
        raise ValueError(f"slice {start}:{stop} lies outside of {shape[dim]}")


def check_pad(shape: Sequence[int], dim: int, before: int, after: int) -> None:
    """Refuse zeros before or after an array if their number is negative.

    Raises:
        ValueError: It says what is wrong.
    """
    _check_dim(shape, dim)
    if min(before, after) < 0:
        raise ValueError(f"padding is {before} and {after}, expected 0 or more")


def check_norm(shape: Sequence[int], n_dims: int) -> None:
    """Refuse a norm over no axes, or over more than there are.

    Raises:
        ValueError: It says what is wrong.
    """
    if not 1 <= n_dims <= len(shape):
        raise ValueError(f"norm over {n_dims} axes of {len(shape)}")


def _check_dim(shape: Sequence[int], dim: int) -> None:
    if not -len(shape) <= dim < len(shape):
        raise ValueError(f"axis is {dim}, but there are {len(shape)}")


def memory_error(error: BaseException, budget_bytes: int) -> DeviceMemoryError:
    """The error for a failed allocation, with the size that its text names.

    Args:
        error: From numpy or torch; both say how much they asked for.
        budget_bytes: All memory of the machine or accelerator.
    """
    asked = _ASKED.search(str(error))
    needed = float(asked[1]) * 1024 ** "bkmgtpe".index(asked[2].lower()) if asked else 0
    return DeviceMemoryError(int(needed), budget_bytes)


def check_piece(
    region: Region, payload: memoryview, *, shape: Sequence[int], itemsize: int
) -> None:
    """Refuse a piece that does not fit the array it is to be written to.

    Raises:
        ProtocolError: If the region lies outside the array or the payload has another size.
    """
    if (
        not Region(0, shape[0], 0, shape[1]).contains(region)
        or min(region.n_rows, region.n_cols) < 0
    ):
        raise ProtocolError(f"piece {region} lies outside its block of {shape[0]}x{shape[1]}")
    if payload.nbytes != region.area * itemsize:
        raise ProtocolError(
            f"piece {region} has {payload.nbytes} bytes, expected {region.area * itemsize}"
        )


def _append_results(
    values: list[Array], index: int, op: Op, functions: Mapping[str, Function]
) -> None:
    """Call one op. A function of its own, so that none of its references outlives the call."""
    _check_arguments(index, op)
    function = functions.get(op.name)
    if function is None:
        raise _unknown(index, op, functions)
    arguments = [values[a.value] if isinstance(a, Ref) else a for a in op.args]
    try:
        results = function(*arguments)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ProgramError(f"op {index} ({op.name}): {error}") from error
    if op.n_results == 1:
        values.append(results)
    else:
        values.extend(results)


def _check_arguments(index: int, op: Op) -> None:
    signature = VOCABULARY[op.name]
    n_most = len(signature.kinds)
    if not signature.n_required <= len(op.args) <= n_most:
        raise ProgramError(
            f"op {index} ({op.name}) has {len(op.args)} arguments, "
            f"expected {signature.n_required} to {n_most}"
        )
    for position, (argument, kind) in enumerate(zip(op.args, signature.kinds, strict=False)):
        if not kind.accepts(argument):
            raise ProgramError(
                f"op {index} ({op.name}): argument {position} is {argument!r}, expected {kind.name}"
            )


def _unknown(index: int, op: Op, known: Iterable[str]) -> ProgramError:
    return ProgramError(
        f"op {index} is {op.name!r}, which is not among those here: {', '.join(sorted(known))}"
    )


@lru_cache(maxsize=256)
def _dead_after(program: Program) -> tuple[tuple[int, ...], ...]:
    """Per op, the numbers of the values that nothing reads after it; every number is checked."""
    n_values = program.n_inputs
    last_use = dict.fromkeys(range(n_values), 0)
    for index, op in enumerate(program.ops):
        _check_wiring(index, op, n_values)
        last_use.update((arg.value, index) for arg in op.args if isinstance(arg, Ref))
        last_use.update(dict.fromkeys(range(n_values, n_values + op.n_results), index))
        n_values += op.n_results
    for number in program.outputs:
        if not 0 <= number < n_values:
            raise ProgramError(f"output is value {number}, but only 0 to {n_values - 1} exist")
        last_use.pop(number, None)
    dead: list[list[int]] = [[] for _ in program.ops]
    if program.ops:
        for number, index in last_use.items():
            dead[index].append(number)
    return tuple(tuple(numbers) for numbers in dead)


def _check_wiring(index: int, op: Op, n_values: int) -> None:
    signature = VOCABULARY.get(op.name)
    if signature is None:
        raise _unknown(index, op, VOCABULARY)
    if op.n_results != signature.n_results:
        raise ProgramError(
            f"op {index} ({op.name}) is said to make {op.n_results} values, "
            f"but makes {signature.n_results}"
        )
    for argument in op.args:
        if isinstance(argument, Ref) and not 0 <= argument.value < n_values:
            raise ProgramError(
                f"op {index} ({op.name}) reads value {argument.value}, "
                f"but only 0 to {n_values - 1} exist before it"
            )
