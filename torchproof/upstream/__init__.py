"""What exists: releases of torch, CUDA, drivers and GPUs, as data with sources, and rules."""
