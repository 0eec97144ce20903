"""Small kernels for the tests of builds."""

from small_kernels import cache, scale, tensor  # noqa: F401
