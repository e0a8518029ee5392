"""Whether an answer is right: the oracle, what rounding may do, tolerances, explanations."""
