"""The judgement of outputs in pure numpy: tolerance, comparison and explanation of a mismatch."""

from pallas_sim.dtypes import (
    FloatFacts,
    epsilon,
    float_facts,
    is_bool,
    is_complex,
    is_exact,
    is_float,
    wide,
)
from pytest_pallas.numerics.comparison import Comparison
from pytest_pallas.numerics.explanation import state
from pytest_pallas.numerics.judgement import compare
from pytest_pallas.numerics.noise import Noise
from pytest_pallas.numerics.patterns import location_patterns
from pytest_pallas.numerics.relations import value_patterns
from pytest_pallas.numerics.tolerance import ROUNDING, Tolerance, summation_error
from pytest_pallas.numerics.trees import bitwise, compare_trees

__all__ = [
    "ROUNDING",
    "Comparison",
    "FloatFacts",
    "Noise",
    "Tolerance",
    "bitwise",
    "compare",
    "compare_trees",
    "epsilon",
    "float_facts",
    "is_bool",
    "is_complex",
    "is_exact",
    "is_float",
    "location_patterns",
    "state",
    "summation_error",
    "value_patterns",
    "wide",
]
