"""What happens at the same time: cores and devices, copies, semaphores, and a recording of it."""
