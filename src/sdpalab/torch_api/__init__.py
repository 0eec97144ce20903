"""Attention as torch users call it: ``scaled_dot_product_attention`` and its kin as torch custom ops."""
