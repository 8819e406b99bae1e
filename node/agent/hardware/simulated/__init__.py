"""A simulated NVML library for hosts without a driver: a model of eight boards, faults from a file, NVML's C calls."""
