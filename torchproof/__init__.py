"""Container images of PyTorch on CUDA that come with proof."""
