"""Measures what majority kernels cost: `keras-mk bench`."""
