"""Choices of a stack as results have it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.analysis.stack_choices import choices_of, launches_cublaslt, launches_own_kernels
from launchopt.stack import Fusion, Kernels, Stack, Submit


@given(st.booleans(), st.frozensets(st.sampled_from(Fusion)), st.sampled_from(Submit), st.booleans())
def test_the_choices_are_those_of_the_stack(coalesce: bool, fuse: frozenset[Fusion], submit: Submit, pdl: bool) -> None:
    stack = Stack(coalesce, fuse, submit, pdl, Kernels.own)
    found = choices_of({"stack": str(stack)})
    assert (len(found), frozenset(found)) == (len(stack.choices), stack.choices)


@pytest.mark.parametrize(
    ("mode", "stack", "own", "cublaslt"),
    [
        ("engine+own", "coalesce submit=stream kernels=own", True, False),
        ("engine+triton", "coalesce submit=stream kernels=triton", True, False),
        ("engine+own+graph", "coalesce submit=graph kernels=own", False, False),
        ("kernel+cublaslt", "submit=stream kernels=cublaslt", False, True),
        ("engine+own", None, False, True),
        ("pairs", "submit=stream kernels=cublaslt", False, False),
    ],
)
def test_whose_kernels_a_stack_launches(mode: str, stack: str | None, own: bool, cublaslt: bool) -> None:
    row = {"mode": mode, "stack": stack}
    assert (launches_own_kernels(row), launches_cublaslt(row)) == (own, cublaslt)
