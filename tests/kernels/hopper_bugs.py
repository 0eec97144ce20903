"""Mistakes that people make in warp-specialised kernels, each planted in ``hopper_attention`` by an edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hopper_attention import KERNEL

from sdpalab import CudaKernel
from sdpalab.kernels.plan import INCLUDE_DIR

__all__ = ["BUGS", "Bug"]


@dataclass(frozen=True)
class Bug:
    """An edit of the source, and what it must lead to.

    Attributes
    ----------
    kind : str
        A kind of hazard, ``deadlock``, or ``wrong``: an output that is wrong by more than rounding.
    """

    name: str
    kind: str
    edits: Sequence[tuple[str, str]]

    @property
    def kernel(self) -> CudaKernel:
        """The kernel with the bug; what it shares with others is inlined, so that the bug can be there too."""
        assert isinstance(KERNEL.source, Path)
        text = KERNEL.source.read_text()
        for header in ("mainloop/ring.cuh", "tile/warpgroup.cuh"):
            text = text.replace(
                f'#include "{header}"\n', (INCLUDE_DIR / header).read_text().replace("#pragma once\n", "")
            )
        for old, new in self.edits:
            assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
            text = text.replace(old, new)
        return replace(KERNEL, source=text)


def _bug(name: str, kind: str, *edits: tuple[str, str]) -> Bug:
    return Bug(name, kind, edits)


_WAIT_EMPTY = "        mbarrier_wait(barriers.empty[at.stage][operand], at.parity ^ 1);"
_WAIT_V = "        mbarrier_wait(barriers.full[v_at.stage][V], v_at.parity);  // loaded before that K\n"
_WAIT_SCORES = "        ptx::wgmma_wait_group<1>();\n"
_WAIT_PRODUCT = "        ptx::wgmma_wait_group<0>();\n        hold(o_frag);\n        hold(p_frag);\n"
_WAIT_LAST = "    ptx::wgmma_wait_group<0>();\n    hold(o_frag);\n\n"
_COMMIT_SCORES = "k + column_step<KEYS>(d));\n    }\n    ptx::wgmma_commit_group();\n"
_FENCE = "        ptx::wgmma_fence();\n        issue_scores"
_RESCALE = "        rescale_output(o_frag, rescale);\n"
_STORE_ROW = "block_address<PANEL_COLUMNS>(panel_smem, warp, d % BLOCKS)"
_BAR = "    ptx::bar_sync(1 + consumer, WARPGROUP);\n"

BUGS = (
    # The ring.
    _bug(
        "fewer bytes announced than come",
        "mbarrier",
        ("expect_tx(full, TILE_BYTES)", "expect_tx(full, TILE_BYTES / 2)"),
    ),
    _bug(
        "more bytes announced than come",
        "deadlock",
        ("expect_tx(full, TILE_BYTES)", "expect_tx(full, TILE_BYTES + 16)"),
    ),
    _bug("the producer waits for the wrong phase", "deadlock", ("at.parity ^ 1);  // over", "at.parity);  // over")),
    _bug("the producer waits for nobody", "deadlock", (_WAIT_EMPTY, "        ")),
    _bug("the parity never flips", "async", ("        parity ^= stage == 0;\n", "")),
    _bug("no wait for Q", "race", ("    mbarrier_wait(barriers.q_full, 0);\n", "")),
    _bug("no wait for V", "race", (_WAIT_V, "")),
    _bug(
        "V is released while a product reads it",
        "async",
        ("        release(v_at, V);\n", ""),
        (_WAIT_SCORES, "        release(v_at, V);\n" + _WAIT_SCORES),
    ),
    _bug(
        "every thread releases",
        "deadlock",
        ("        if (leader) {\n            ptx::mbarrier_arrive(", "        {\n            ptx::mbarrier_arrive("),
    ),
    _bug("the mbarriers are used before all know of them", "race", ("    __syncthreads();\n", "")),
    # wgmma.
    _bug("no wgmma.fence in the loop", "wgmma", (_FENCE, "        issue_scores")),
    _bug(
        "the scores are not committed",
        "wgmma",
        (_COMMIT_SCORES, _COMMIT_SCORES.replace("    ptx::wgmma_commit_group();\n", "")),
    ),
    _bug("the wait leaves the scores in flight", "wgmma", (_WAIT_SCORES, _WAIT_SCORES.replace("1", "2"))),
    _bug("no wait for the last product", "wgmma", (_WAIT_LAST, "\n")),
    _bug("the output is rescaled in flight", "wgmma", (_WAIT_PRODUCT, ""), (_RESCALE, _RESCALE + _WAIT_PRODUCT)),
    # What only the numbers tell.
    _bug("K's descriptor does not advance", "wrong", ("k + column_step<KEYS>(d)", "k")),
    _bug("V's descriptor advances along its columns", "wrong", ("v + row_step(n)", "v + column_step<BLOCK_N>(n)")),
    _bug(
        "the output is stored without the swizzle", "wrong", (_STORE_ROW, "panel_smem + warp * 2048 + d % BLOCKS * 32")
    ),
    _bug("the zeros past the last key count", "wrong", ("tile >= unmasked, keys_left", "false, keys_left")),
    _bug("the output is not rescaled", "wrong", (_RESCALE, "")),
    # The epilogue.
    _bug("no fence.proxy.async before the store", "proxy", ("    ptx::fence_proxy_async_shared_cta();\n", "")),
    _bug("no barrier before the store", "race", (_BAR, "")),
    _bug("the barrier is for one warp", "barrier", (_BAR, _BAR.replace("WARPGROUP", "32"))),
    _bug("nobody waits for the store", "async", ("        ptx::cp_async_bulk_wait_group_read<0>();", "        ")),
    _bug("the store is not committed", "async", ("        ptx::cp_async_bulk_commit_group();\n", "")),
)
