"""PyTorch as the judge, on CPUs: `python -m benchmarks.torch_truth` writes docs/benchmarks-pytorch.md."""
