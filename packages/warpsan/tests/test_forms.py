"""The table of forms: modifiers as records, and the role of each form in synchronisation."""

import pytest

pytest.importorskip("llvmlite", reason="the native engine has the handlers")

from warpsan.engine.assembler import HANDLERS
from warpsan.engine.ends import ENDS
from warpsan.errors import UnsupportedInstruction
from warpsan.ptx.grammar import FORMS, Form, form_of, has_form
from warpsan.ptx.ir import Address, Immediate, Instruction, Operand, Register, Vector
from warpsan.ptx.modifiers import find_handler
from warpsan.ptx.opcodes import role_of
from warpsan.ptx.synchronising import AsyncStore, BulkCopy, Mbarrier, MbarrierTest, ProxyFence

PLACE = Address(Register("%rd1"), 0)


def instruction(text: str, *operands: Operand) -> Instruction:
    opcode, *mods = text.split(".")
    return Instruction(0, opcode, tuple(mods), operands, None, 7, None)


def test_every_form_has_a_handler():
    handlers = {**HANDLERS, **ENDS}
    assert [name for name in FORMS if find_handler(handlers, instruction(name)) is None] == []


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
    ("text", "role"),
    [
        ("fence.acq_rel.gpu", "orders"),
        ("griddepcontrol.wait", "orders"),
        ("griddepcontrol.launch_dependents", ""),
        ("mbarrier.pending_count.b64", ""),
        ("mbarrier.arrive.b64", "orders"),
        ("cp.async.ca.shared.global", "copies"),
        ("cp.async.mbarrier.arrive.noinc.b64", "issues"),
        ("cp.async.bulk.commit_group", "orders"),
        ("cp.async.bulk.prefetch.L2.global", ""),
        ("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group", "issues"),
        ("red.async.relaxed.cluster", "issues"),
        ("red.global.add.u32", ""),
        ("add.u32", ""),
    ],
)
def test_role_in_synchronisation(text, role):
    assert role_of(instruction(text)) == role


def test_has_form_reads_no_modifiers():
    assert has_form(instruction("mbarrier.test_wait.unknown"), MbarrierTest)
    assert not has_form(instruction("mbarrier.init.b64"), MbarrierTest)
    assert not has_form(instruction("frobnicate.u32"), Form)
