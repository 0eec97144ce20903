"""The table of instructions: modifiers as records, ends of blocks, and asynchronous units."""

import pytest

pytest.importorskip("llvmlite", reason="the native engine has the handlers")

from warpsan import semantics as semantics  # registers every handler
from warpsan.engine.assembler import HANDLERS
from warpsan.errors import UnsupportedInstruction
from warpsan.ptx.grammar import FORMS, Form, form_of, has_form
from warpsan.ptx.ir import Address, Immediate, Instruction, Operand, Register, Vector
from warpsan.ptx.modifiers import find_handler
from warpsan.ptx.opcodes import ends_block, unit_of
from warpsan.ptx.synchronising import AsyncStore, BulkCopy, Mbarrier, MbarrierTest, ProxyFence

PLACE = Address(Register("%rd1"), 0)


def instruction(text: str, *operands: Operand) -> Instruction:
    opcode, *mods = text.split(".")
    return Instruction(0, opcode, tuple(mods), operands, None, 7, None)


def test_every_form_has_a_handler():
    assert [name for name in FORMS if find_handler(HANDLERS, name) is None] == []


def test_a_form_is_read_once():
    wait = instruction("mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64")
    form = form_of(wait, MbarrierTest)
    assert (form.name, form.space, form.parity, form.order, form.scope) == (
        *("mbarrier.try_wait", "shared", True, "acquire"),
        "cluster",
    )
    assert form_of(wait, Mbarrier) is form


@pytest.mark.parametrize(
    ("text", "spaces"),
    [
        ("fence.proxy.async", ("shared", "global")),
        ("fence.proxy.async.shared::cta", ("shared",)),
        ("fence.proxy.async.global", ("global",)),
        ("fence.proxy.alias", ()),
        ("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster", ("shared",)),
        ("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster", ()),
    ],
)
def test_spaces_of_a_fence_of_the_async_proxy(text, spaces):
    assert form_of(instruction(text), ProxyFence).spaces == spaces


def test_a_multicast_is_of_loads_from_global_memory():
    completes = "mbarrier::complete_tx::bytes"
    load = instruction(f"cp.async.bulk.shared::cluster.global.{completes}.multicast::cluster.L2::cache_hint")
    form = form_of(load, BulkCopy)
    assert (form.way, form.casts, form.hint) == (("shared::cluster", "global"), True, True)
    with pytest.raises(UnsupportedInstruction, match=r"PTX line 7.*not modelled: \.multicast::cluster"):
        form_of(instruction("cp.async.bulk.global.shared::cta.bulk_group.multicast::cluster"), BulkCopy)


def test_operands_outside_the_grammar_are_refused():
    with pytest.raises(UnsupportedInstruction, match="expected 2 values"):
        form_of(
            instruction("st.async.v2.mbarrier::complete_tx::bytes.b32", PLACE, Vector((Immediate(1),)), PLACE),
            AsyncStore,
        )


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("fence.acq_rel.gpu", ""),
        ("fence.proxy.async", "proxies"),
        ("mbarrier.arrive.b64", "mbarriers"),
        ("cp.async.ca.shared.global", "copies"),
        ("cp.async.mbarrier.arrive.noinc.b64", "bulk"),
        ("cp.async.bulk.commit_group", "bulk"),
        ("cp.async.bulk.prefetch.L2.global", ""),
        ("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group", "bulk"),
        ("red.async.relaxed.cluster", "bulk"),
        ("red.global.add.u32", ""),
        ("wgmma.fence.sync.aligned", "products"),
    ],
)
def test_the_asynchronous_unit_of_an_instruction(text, unit):
    assert unit_of(instruction(text)) == unit


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        *(
            ("bar.sync", True),
            ("bar.warp.sync", False),
            ("barrier.cluster.wait", True),
            ("mbarrier.test_wait.b64", False),
        ),
        *(
            ("mbarrier.try_wait.b64", True),
            ("wgmma.fence", False),
            ("wgmma.wait_group", True),
            ("setmaxnreg.inc", True),
        ),
    ],
)
def test_a_block_ends_where_control_branches_or_lanes_wait(text, ends):
    assert ends_block(instruction(text)) == ends


def test_has_form_reads_no_modifiers():
    assert has_form(instruction("mbarrier.test_wait.unknown"), MbarrierTest)
    assert not has_form(instruction("mbarrier.init.b64"), MbarrierTest)
    assert not has_form(instruction("frobnicate.u32"), Form)
