"""C++ names of kernels and variables."""

import numpy as np
import pytest

import warpsan
from warpsan.ptx.names import demangled, resolve, short_name

HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"
NAMES = [
    ("_Z5scaleIfEvPT_i", "void scale<float>(float*, int)", "scale<float>"),
    ("_Z5scaleIdEvPT_i", "void scale<double>(double*, int)", "scale<double>"),
    ("_ZN2ns4turnEPj", "ns::turn(unsigned int*)", "ns::turn"),
    ("_ZN12_GLOBAL__N_14hideEPj", "(anonymous namespace)::hide(unsigned int*)", "(anonymous namespace)::hide"),
    ("_Z3oneIXadL_Z3twoiEEEvv", "void one<&(two(int))>()", "one<&(two(int))>"),
    ("plain", "plain", "plain"),
    # nvcc 13's mangling of a CUTLASS template argument, unknown to binutils and libstdc++.
    ("_ZN3lib6KernelINS_4ItemELNSV_1EfSF_EEEvv", "lib::Kernel<...>", "lib::Kernel<...>"),
]


@pytest.mark.parametrize(("mangled", "full", "bare"), NAMES)
def test_demangled_and_short(mangled, full, bare):
    assert demangled(mangled) == full
    assert short_name(mangled) == bare


@pytest.mark.parametrize(
    ("name", "found"),
    [(each, mangled) for mangled, full, bare in NAMES for each in (mangled, full, bare)]
    + [("turn", "_ZN2ns4turnEPj"), ("hide", "_ZN12_GLOBAL__N_14hideEPj"), ("scale< float >", "_Z5scaleIfEvPT_i")]
    + [(each, "_ZN3lib6KernelINS_4ItemELNSV_1EfSF_EEEvv") for each in ("lib::Kernel", "Kernel")],
)
def test_names_that_are_accepted(name, found):
    assert resolve(name, [mangled for mangled, _, _ in NAMES], "entry") == found


def test_an_ambiguous_name_and_one_that_there_is_not():
    names = [mangled for mangled, _, _ in NAMES]
    with pytest.raises(warpsan.LaunchError, match="the entry 'scale' may be any of") as caught:
        resolve("scale", names, "entry")
    assert "scale<float>(float*, int), " in str(caught.value)
    with pytest.raises(warpsan.LaunchError, match=r"no entry 'nothing'; it has: scale<float>, scale<double>, ns::turn"):
        resolve("nothing", names, "entry")


def test_a_name_of_a_thousand_characters_is_not_a_message():
    long = f"_Z1kI{'N2ns5thing4typeE' * 60}Evv"
    assert len(short_name(long)) <= 80
    with pytest.raises(warpsan.LaunchError) as caught:
        resolve("nothing", [long] * 20, "entry")
    assert len(str(caught.value)) < 1000
    text = f"{HEAD}.visible .entry {long}(.param .u64 {long}_param_0) {{ ret; }}"
    with pytest.raises(warpsan.LaunchError) as caught:
        warpsan.launch(text, long, 1, 1, [2.5])
    assert len(str(caught.value)) < 120
    with pytest.raises(warpsan.LaunchError) as caught:
        warpsan.launch(text, long, 1, 1, [])
    assert len(str(caught.value)) < 140


def test_a_launch_by_the_name_in_c_plus_plus():
    text = f"{HEAD}.visible .entry _Z5scaleIfEvPT_i(.param .u64 p, .param .u32 n) {{ .reg .b64 %d; .reg .b32 %r;\n"
    text += "ld.param.u64 %d, [p]; ld.param.u32 %r, [n]; st.global.u32 [%d], %r; ret; }"
    for name in ("_Z5scaleIfEvPT_i", "scale<float>", "scale", "void scale<float>(float*, int)"):
        out = np.zeros(1, np.uint32)
        warpsan.launch(text, name, 1, 1, [out, 7])
        assert out[0] == 7
