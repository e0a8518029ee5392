"""One session of pytest as several processes of one ``jax.distributed`` program."""
