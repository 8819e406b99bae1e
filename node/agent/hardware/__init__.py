"""The GPUs of this host: found and sampled through NVML (or a simulated NVML library), judged, sent home."""
