"""The modules whose source is the text of scripts; they need jax and numpy alone."""
