"""What kernels are tried on: hypothesis strategies, diverse examples."""
