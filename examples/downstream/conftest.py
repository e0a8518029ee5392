"""Hypothesis profiles: ``pytest --hypothesis-profile=nightly`` draws more than a quick run."""

from hypothesis import settings

settings.register_profile("nightly", max_examples=200, print_blob=True)
