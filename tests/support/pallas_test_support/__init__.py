"""What several tests share: kernels, programs, samples, processes."""
