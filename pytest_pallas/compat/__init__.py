"""The only package that touches private names of JAX, pytest or hypothesis.

One function a fact, each with the versions in which it was seen. When a new release moves
something, this is the place to mend.
"""

from __future__ import annotations

from pytest_pallas.compat.compilers import devices_answer, exact_exports, interpret_ignored
from pytest_pallas.compat.fuzzing import (
    hypothesis_profile,
    hypothesis_seed,
    hypothesis_settings,
    is_of_shrinking,
    sampled_elements,
    set_database_key,
    set_hypothesis_settings,
    without_module_constants,
)
from pytest_pallas.compat.interpreters import (
    clear_effect_tokens,
    fail_interpreters,
    memory_filled,
    mended_tpu_interpreter,
    printed_races,
    quiet_callbacks,
    reset_interpreters,
)
from pytest_pallas.compat.jaxprs import (
    KERNEL_PRIMITIVES,
    block_programs,
    called_jaxpr,
    eval_jaxpr,
    kernel_name,
    source_line,
    sub_jaxprs,
    unwritten_memory,
    written_inputs,
)
from pytest_pallas.compat.testing import fixture_is_overridden, terminal_width

__all__ = [
    "KERNEL_PRIMITIVES",
    "block_programs",
    "called_jaxpr",
    "clear_effect_tokens",
    "devices_answer",
    "eval_jaxpr",
    "exact_exports",
    "fail_interpreters",
    "fixture_is_overridden",
    "hypothesis_profile",
    "hypothesis_seed",
    "hypothesis_settings",
    "interpret_ignored",
    "is_of_shrinking",
    "kernel_name",
    "memory_filled",
    "mended_tpu_interpreter",
    "printed_races",
    "quiet_callbacks",
    "reset_interpreters",
    "sampled_elements",
    "set_database_key",
    "set_hypothesis_settings",
    "source_line",
    "sub_jaxprs",
    "terminal_width",
    "unwritten_memory",
    "without_module_constants",
    "written_inputs",
]
