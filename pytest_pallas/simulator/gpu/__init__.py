"""GPUs: blocks of threads, their memory, and what works beside them."""
