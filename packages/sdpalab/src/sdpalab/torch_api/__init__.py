"""Attention as torch users call it: ``scaled_dot_product_attention`` and related functions as torch custom ops."""
