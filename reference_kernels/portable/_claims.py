"""Where the portable kernels run."""

#: ``gpu-interpret`` is not among them: it interprets kernels of Mosaic GPU, and Pallas takes these
#: through Triton.
BACKENDS = (
    *("tpu-sim", "interpret", "tpu-interpret", "tpu-compile", "tpu"),
    *("gpu-sim", "gpu-compile", "gpu"),
)
