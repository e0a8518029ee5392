"""Private names of JAX, over its versions; no other module of the simulator has any."""
