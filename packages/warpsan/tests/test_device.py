"""Devices: stable addresses, persistent variables, launches and copies in streams."""

import numpy as np
import pytest

import warpsan

HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"
MODULE = HEAD + """
.visible .global .align 4 .u32 _ZN2ns5totalE = 100;
.visible .const .align 4 .b8 factors[16] = {2, 0, 0, 0, 3, 0, 0, 0};
.visible .global .align 8 .u64 here = _ZN2ns5totalE;
.visible .entry add(.param .u64 x, .param .u64 y, .param .u32 n) {
    .reg .b64 %d<4>; .reg .b32 %r<6>; .reg .pred %p;
    ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
    setp.ge.u32 %p, %r1, %r0; @%p ret;
    mul.wide.u32 %d2, %r1, 4; add.u64 %d0, %d0, %d2; add.u64 %d1, %d1, %d2;
    ld.global.u32 %r4, [%d0]; ld.global.u32 %r5, [%d1]; add.u32 %r4, %r4, %r5; st.global.u32 [%d1], %r4; ret; }
.visible .entry count(.param .u64 out) {
    .reg .b64 %d<3>; .reg .b32 %r<4>;
    ld.param.u64 %d0, [out]; ld.global.u32 %r0, [_ZN2ns5totalE]; ld.const.u32 %r1, [factors+4]; add.u32 %r0, %r0, %r1;
    st.global.u32 [_ZN2ns5totalE], %r0; ld.global.u64 %d1, [here]; ld.u32 %r2, [%d1]; st.global.u32 [%d0], %r2; ret; }
.visible .entry follow(.param .u64 table, .param .u64 out) {
    .reg .b64 %d<4>; .reg .b32 %r;
    ld.param.u64 %d0, [table]; ld.param.u64 %d3, [out]; ld.global.u64 %d1, [%d0+8]; ld.global.u32 %r, [%d1];
    st.global.u32 [%d3], %r; ret; }
"""  # fmt: skip


@pytest.fixture
def gpu():
    return warpsan.Device(1 << 24)


def test_arrays_have_addresses_that_stay_and_share_one_memory(gpu):
    module = gpu.module(MODULE)
    x, y = gpu.array(np.arange(100, dtype=np.uint32)), gpu.array([1] * 100, np.uint32)
    places = x.address, y.address
    for turn in range(1, 4):
        assert module["add"].launch(2, 64, [x, y, 100]).hazards == []
        assert y.tolist() == [1 + turn * i for i in range(100)]
    assert (x.address, y.address) == places
    y[:] = 5  # the host writes to the same memory
    module["add"].launch(2, 64, [y, x, 100])
    assert x.tolist() == [i + 5 for i in range(100)]


def test_parts_of_an_array_and_addresses_as_numbers_point_into_it(gpu):
    add = gpu.module(MODULE)["add"]
    x = gpu.array(np.arange(12, dtype=np.uint32))
    assert x[4:].address == x.address + 16 == x.reshape(3, 4)[1].address
    add.launch(1, 32, [x[8:], x, 4])
    assert x.tolist() == [8, 10, 12, 14, *range(4, 12)]
    add.launch(1, 32, [x.address + 16, warpsan.Pointer(x, 32), 4])
    assert x[8:].tolist() == [12, 14, 16, 18]
    assert add.launch(1, 32, [x, x[8:], 5]).hazards[0].kind == "out-of-bounds"


def test_one_buffer_twice_and_ordinary_arrays(gpu):
    add = gpu.module(MODULE)["add"]
    x = gpu.array(np.arange(8, dtype=np.uint32))
    add.launch(1, 8, [x, x, 8])
    assert x.tolist() == [2 * i for i in range(8)]
    ours = np.ones(8, np.uint32)
    for _ in range(3):
        assert add.launch(1, 8, [x, ours, 8]).hazards == []
    assert ours.tolist() == [1 + 6 * i for i in range(8)]


def test_variables_keep_their_values_and_can_be_set(gpu):
    module, out = gpu.module(MODULE), gpu.empty(1, np.uint32)
    total, factors = module.variable("ns::total", np.uint32), module.variable("factors", np.uint32)
    assert (total.tolist(), factors.tolist()) == ([100], [2, 3, 0, 0])
    for want in (103, 106):
        module["count"].launch(1, 1, [out])
        assert (int(out[0]), int(total[0])) == (want, want)
    total[0], factors[1] = 1, 10
    module["count"].launch(1, 1, [out])
    assert total[0] == 11
    other = gpu.module(MODULE)  # with separate variables
    assert other.variable("total", np.uint32)[0] == 100


def test_a_table_of_addresses_and_structures_on_the_device(gpu):
    follow, out = gpu.module(MODULE)["follow"], gpu.empty(1, np.uint32)
    a, b = gpu.array([1, 2], np.uint32), gpu.array([3, 4], np.uint32)
    table = gpu.array([a.address, b[1:].address], np.uint64)
    for argument in (table, gpu.array(warpsan.Struct(bytes(16), {8: b[1:]})), [a, b[1:]]):
        out[0] = 0
        assert follow.launch(1, 1, [argument, out]).hazards == []
        assert out[0] == 4


def test_freed_memory_and_bad_uses(gpu):
    module = gpu.module(MODULE)
    x, y = gpu.array(np.arange(8, dtype=np.uint32)), gpu.array(np.zeros(8, np.uint32))
    address = x.address
    gpu.free(x)
    hazards = module["add"].launch(1, 8, [address, y, 8]).hazards
    assert [hazard.kind for hazard in hazards] == ["out-of-bounds"]
    for act, words in (
        (lambda: module["add"].launch(1, 8, [x, y, 8]), "was freed"),
        (lambda: gpu.free(x), "only once"),
        (lambda: gpu.free(y[1:]), "only a whole array"),
        (lambda: (y + 1).address, "is a copy"),
        (lambda: gpu.empty(1 << 24), "has .* of its 16777216 left"),
        (lambda: module["nothing"], "no entry 'nothing'; it has: add, count, follow"),
        (lambda: module.variable("nothing"), "no variable 'nothing'"),
        (lambda: module.variable("total", np.uint64), "has 4 bytes"),
        (lambda: gpu.copy(y, y[1:]), "a copy of 28 bytes to an array of 32"),
    ):
        with pytest.raises(warpsan.LaunchError, match=words):
            act()


def test_many_launches_take_no_memory(gpu):
    add, x = gpu.module(MODULE)["add"], gpu.array([1], np.uint32)
    for _ in range(300):
        add.launch(1, 1, [np.ones(4096, np.uint32), x, 1])
    assert x[0] == 301


def launches(gpu, order):
    """Two launches that write one array, the second after the operations of ``order``; hazard kinds of the second."""
    add = gpu.module(MODULE)["add"]
    x, y = gpu.array(np.ones(64, np.uint32)), gpu.array(np.ones(64, np.uint32))
    first, second = gpu.stream(), gpu.stream()
    add.launch(1, 64, [x, y, 64], stream=first)
    stream = order(gpu, first, second)
    report = add.launch(1, 64, [x, y, 64], stream=stream)
    assert gpu.hazards == report.hazards
    return report.hazards


def wait_for_event(gpu, first, second):
    second.wait(first.record())
    return second


ORDERED = {
    "one stream": lambda gpu, first, second: first,
    "an event": wait_for_event,
    "the stream": lambda gpu, first, second: (first.synchronize(), second)[1],
    "the device": lambda gpu, first, second: (gpu.synchronize(), second)[1],
    "an event of the host": lambda gpu, first, second: (first.record().synchronize(), second)[1],
    "the default stream": lambda gpu, first, second: None,
    "a stream made later": lambda gpu, first, second: (gpu.synchronize(), gpu.stream())[1],
}


@pytest.mark.parametrize("order", ORDERED.values(), ids=ORDERED)
def test_ordered_launches_do_not_race(gpu, order):
    assert launches(gpu, order) == []


UNORDERED = {
    "another stream": lambda gpu, first, second: second,
    "the wrong event": lambda gpu, first, second: (second.wait(second.record()), second)[1],
    "a stream that does not block": lambda gpu, first, second: gpu.stream(blocking=False),
}


@pytest.mark.parametrize("order", UNORDERED.values(), ids=UNORDERED)
def test_launches_of_streams_that_nothing_orders_race(gpu, order):
    hazards = launches(gpu, order)
    assert {hazard.kind for hazard in hazards} == {"race"}
    assert all("add in stream" in hazard.message and "stream 1" in hazard.message for hazard in hazards)
    assert {hazard.other.text for hazard in hazards} <= {"st.global.u32", "ld.global.u32"}


def test_launches_on_different_arrays_or_that_only_read_do_not_race(gpu):
    add = gpu.module(MODULE)["add"]
    x, y, z = (gpu.array(np.ones(64, np.uint32)) for _ in range(3))
    for target in (y, z):
        assert add.launch(1, 64, [x, target, 64], stream=gpu.stream()).hazards == []
    halves = gpu.array(np.ones(64, np.uint32))
    for half in (halves[:32], halves[32:]):
        assert add.launch(1, 32, [x, half, 32], stream=gpu.stream()).hazards == []


def test_launches_of_streams_are_looked_at_again_where_they_may_meet(gpu):
    """Reads are recorded per 16 bytes: a neighbour's write is no race, and memory stays unchanged."""
    add, x = gpu.module(MODULE)["add"], gpu.array(np.ones(64, np.uint32))
    y = gpu.array(np.zeros(64, np.uint32), name="y")
    first, second = gpu.stream(), gpu.stream()
    assert add.launch(1, 30, [x, y[:30], 30], stream=first).hazards == []
    assert add.launch(1, 2, [x, y[30:], 2], stream=second).hazards == []
    y[60] = 7  # a host write between the launches
    third = gpu.array(np.zeros(4, np.uint32))
    hazards = add.launch(1, 4, [y[29:], third, 4], stream=second).hazards
    (hazard,) = hazards
    assert hazard.text == "ld.global.u32"
    assert hazard.other.text == "st.global.u32"
    assert hazard.other.note == "add in stream 1"
    assert "at byte 116 of y" in hazard.message
    assert y.tolist() == [1] * 32 + [0] * 28 + [7] + [0] * 3
    assert third.tolist() == [1, 1, 1, 0]


def test_launches_beside_others_keep_all_accesses_where_memory_would_be_kept_too_often(gpu, monkeypatch):
    monkeypatch.setattr("warpsan.host.device._MOST_KEPT", 0)
    assert {hazard.kind for hazard in launches(gpu, lambda gpu, first, second: second)} == {"race"}


def test_a_copy_back_before_the_stream_is_done(gpu):
    add = gpu.module(MODULE)["add"]
    x, y = gpu.array(np.ones(64, np.uint32)), gpu.array(np.ones(64, np.uint32))
    stream, other, out = gpu.stream(blocking=False), gpu.stream(), np.zeros(64, np.uint32)
    add.launch(1, 64, [x, y, 64], stream=stream)
    (hazard,) = gpu.copy(out, y, stream=other)
    assert hazard.kind == "race"
    assert (
        "a copy in stream 2 reads what st.global.u32 of warp 0 of block (0, 0, 0) (add in stream 1)" in hazard.message
    )
    stream.synchronize()
    assert gpu.copy(out, y) == []
    assert out.tolist() == [2] * 64
    assert gpu.fill(y, 0, stream=stream) == []
    (hazard,) = add.launch(1, 64, [x, y, 64], stream=other).hazards[:1]
    assert hazard.other.text == "a fill"
    assert "PTX line 0" not in hazard.message


def test_a_later_operation_is_compared_with_all_that_are_not_ordered_before_it(gpu):
    """Two streams write one array each, and a third stream that waited for one of them reads both."""
    add = gpu.module(MODULE)["add"]
    x, y, z = (gpu.array(np.ones(64, np.uint32), name=name) for name in "xyz")
    first, second, third = gpu.stream(), gpu.stream(), gpu.stream()
    add.launch(1, 64, [x, y, 64], stream=first)
    add.launch(1, 64, [x, z, 64], stream=second)
    third.wait(first.record())
    hazards = add.launch(1, 64, [y, z, 64], stream=third).hazards
    assert hazards
    assert all("of z" in hazard.message for hazard in hazards)


def test_the_host_races_with_what_it_has_not_waited_for() -> None:
    gpu = warpsan.Device(host_shares=True)
    x = gpu.array(np.zeros(64, np.float32))
    gpu.operation("a copy", None, x[:16], source="a.cu:3")
    assert gpu.host_access(x.address + 64, 4, write=True) == []
    (hazard,) = gpu.host_access(x.address + 60, 4, write=False, source="a.cu:4")
    assert hazard.message == (
        "race: the host reads what a copy (in the default stream) at a.cu:3 wrote, at byte 60 of array 0 (a.cu:4); "
        "usually a missing synchronisation of the host with the stream"
    )
    assert gpu.pending()[1].tolist() == [[x.address, x.address + 64]]
    gpu.synchronize()
    assert gpu.host_access(x.address, 4, write=True) == []
    assert gpu.pending()[1].tolist() == []


def test_rows_of_an_operation_leave_what_is_between_them() -> None:
    gpu = warpsan.Device()
    x = gpu.array(np.zeros((4, 8), np.float32))
    first, second = (gpu.stream(blocking=False) for _ in range(2))
    assert gpu.operation("a fill", None, x[:, :4], stream=first) == []
    assert gpu.operation("a fill", None, x[:, 4:], stream=second) == []
    assert [hazard.kind for hazard in gpu.operation("a fill", None, x[2:, 3:6], stream=second)] == ["race"]


def test_bytes_at_an_address() -> None:
    gpu = warpsan.Device()
    x = gpu.array(np.arange(4, dtype=np.uint8), name="x")
    assert gpu.at(x.address + 1, 2).tolist() == [1, 2]
    with pytest.raises(warpsan.LaunchError, match="3 bytes from byte 2 of x on reach beyond its 4 bytes"):
        gpu.at(x.address + 2, 3)
    with pytest.raises(warpsan.LaunchError, match="there is nothing at the address 0x10 of the device"):
        gpu.at(0x10, 1)


def test_memory_of_the_caller() -> None:
    memory = np.zeros(1 << 20, np.uint8)[256:]
    memory = memory[-memory.ctypes.data % 256 :]
    gpu = warpsan.Device(memory)
    x = gpu.empty(16, np.uint8, align=4096)
    x[:] = 7
    assert x.address % 4096 == 0
    assert (memory == 7).sum() == 16


NEIGHBOURS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u32 first, .param .u32 n, .param .u32 hit)
{
.reg .b32 %r<9>; .reg .b64 %rd<5>; .reg .pred %p<3>;
ld.param.u64 %rd1, [a]; ld.param.u32 %r1, [first]; ld.param.u32 %r2, [n]; ld.param.u32 %r7, [hit];
mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mad.lo.u32 %r6, %r3, %r4, %r5;
setp.ge.u32 %p1, %r6, %r2; @%p1 ret;
setp.eq.u32 %p2, %r6, %r7; @%p2 mov.u32 %r1, 0;
mul.wide.u32 %rd2, %r6, 16; add.u64 %rd1, %rd1, %rd2; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd1, %rd1, %rd3;
ld.global.u32 %r8, [%rd1]; st.global.u32 [%rd1], %r6;
ret;
}
"""


@pytest.mark.parametrize(("hit", "races"), [(4000, 2), (100, 2), (1 << 30, 0)])
def test_a_race_among_many_neighbours(gpu, hit, races):
    """Two streams write neighbouring words in each 16 bytes, except for one thread of the second."""
    many, kernel = 5000, gpu.module(NEIGHBOURS)["k"]
    x = gpu.array(np.zeros(4 * many, np.uint32), name="x")
    assert kernel.launch(-(-many // 256), 256, [x, 0, many, 1 << 30], stream=gpu.stream()).hazards == []
    hazards = kernel.launch(-(-many // 256), 256, [x, 2, many, hit], stream=gpu.stream()).hazards
    assert len(hazards) == races
    for hazard in hazards:
        assert f"at byte {16 * hit} of x" in hazard.message
        block, thread = divmod(hit, 256)
        assert (hazard.block[0], hazard.thread[0]) == (block, thread // 32 * 32)


def test_arrays_of_the_caller_that_are_copied_beside_a_launch(gpu):
    add, x = gpu.module(MODULE)["add"], gpu.array(np.ones(64, np.uint32), name="x")
    y, own = gpu.array(np.ones(64, np.uint32), name="y"), np.full(64, 5, np.uint32)
    assert add.launch(1, 64, [own, y, 64], stream=gpu.stream()).hazards == []
    hazards = add.launch(1, 64, [own, y, 64], stream=gpu.stream()).hazards
    assert {hazard.kind for hazard in hazards} == {"race"}
    assert all("of y" in hazard.message for hazard in hazards)
    assert y.tolist() == [11] * 64
    assert add.launch(1, 64, [own, x, 64], stream=gpu.stream()).hazards == []
