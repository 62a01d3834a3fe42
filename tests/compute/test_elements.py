"""Casts to and from the types of the wire."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cleave.compute.elements import BF16, Elements, decode, encode, from_bytes, to_bytes
from cleave.core.matrix import DType


def bits(array: Elements) -> Elements:
    return array.view(np.uint16)


def torch_bits(array: Elements, dtype: torch.dtype) -> Elements:
    rounded: Elements = torch.from_numpy(array).to(dtype).view(torch.int16).numpy()
    return bits(rounded)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_bf16_rounds_as_torch_does(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    assert (bits(encode(array, DType.BF16)) == torch_bits(array, torch.bfloat16)).all()


def test_every_bf16_survives_a_round_trip() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(BF16)
    again = encode(decode(every), DType.BF16)
    is_nan = np.isnan(decode(every))
    assert (bits(again)[~is_nan] == bits(every)[~is_nan]).all()
    assert np.isnan(decode(again)[is_nan]).all()


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F32, DType.F64])
def test_nan_and_infinity_stay_what_they_are(dtype: DType) -> None:
    patterns = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001], dtype=np.uint32)
    assert np.isnan(decode(encode(patterns.view(np.float32), dtype))).all()
    infinities = np.array([np.inf, -np.inf], dtype=np.float32)
    assert decode(encode(infinities, dtype)).tolist() == [np.inf, -np.inf]


def test_ties_go_to_even_and_overflow_to_infinity() -> None:
    ties = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF], dtype=np.uint32).view(np.float32)
    assert bits(encode(ties, DType.BF16)).tolist() == [0x3F80, 0x3F82, 0x7F80]
    assert decode(encode(np.array([1e6, -1e6]), DType.F16)).tolist() == [np.inf, -np.inf]


def test_fp64_rounds_to_bf16_by_way_of_fp32() -> None:
    array = np.array([[1e300, 1.00390625, 0.1]])
    assert (bits(encode(array, DType.BF16)) == torch_bits(array, torch.bfloat16)).all()


def test_what_is_right_already_is_not_copied() -> None:
    array = np.ones((3, 4), dtype=np.float32)
    assert encode(array, DType.F32) is array
    assert np.shares_memory(np.frombuffer(to_bytes(array), np.float32), array)
    payload = bytes(48)
    assert from_bytes(payload, (3, 4), DType.F32).base is not None


@pytest.mark.parametrize("dtype", list(DType))
def test_empty_arrays_have_no_bytes(dtype: DType) -> None:
    empty = encode(np.zeros((0, 3)), dtype)
    assert to_bytes(empty).nbytes == 0
    assert from_bytes(b"", (0, 3), dtype).shape == (0, 3)


def test_columns_of_a_wider_array_are_gathered() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    column = encode(array, DType.BF16)[:, 1:2]
    assert from_bytes(to_bytes(column), (3, 1), DType.BF16).shape == (3, 1)
    assert decode(column).ravel().tolist() == [1, 5, 9]
