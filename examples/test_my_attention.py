"""Your own attention, judged as one of your tests.

    pytest examples/test_my_attention.py

fails with the reasons, the worst row, a map of the error and the likely bug, where there is one.
"""

import pytest
from my_callable import blocked_attention

from sdpalab import Problem
from sdpalab.testing import assert_attention


@pytest.mark.parametrize("causal", [False, True])
def test_blocked_attention(causal: bool) -> None:
    assert_attention(blocked_attention, Problem(1, 2, 100, 32, causal=causal))
