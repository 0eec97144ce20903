"""The campaign on the suites of labelled races, on small codes of our own in their layouts."""

from itertools import islice

import numpy as np
import pytest

from lab import suites
from sdpalab.errors import UserError

KERNEL = """typedef int data_t;
#include "indigo_cuda.h"
__global__ void test_kernel(int* nindex, int* nlist, data_t* data1, data_t* data2, int numv) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < numv) {
        BODY
    }
}
void serial_code(int* nindex, int* nlist, data_t* data1, data_t* data2, int numv) {}
"""
BODIES = {
    "sum": "atomicAdd(&data1[0], nlist[nindex[i]]);",
    "sum_atomicBug": "data1[0] += nlist[nindex[i]] + i;",
    "sum_boundsBug": "atomicAdd(&data1[0], nindex[i + 2]);",
}
SCOR = """#define NBLOCKS  2
#define TPERBLK  1
__device__ int flag = 0;
__global__ void kmain(volatile unsigned int *data) {
    if (blockIdx.x == 0) {
        data[0] = 1;
        FENCE;
        atomicExch(&flag, 1);
    } else {
        while (atomicExch(&flag, 0) == 0) {}
        atomicExch(&flag, data[0]);
    }
}
int main() {}
"""


@pytest.fixture
def indigo(tmp_path):
    (tmp_path / "indigo" / "indigo_sources" / "sum").mkdir(parents=True)
    (tmp_path / "indigo" / "input").mkdir()
    for name, body in BODIES.items():
        path = tmp_path / "indigo" / "indigo_sources" / "sum" / f"{name}.cu"
        path.write_text(KERNEL.replace("BODY", body))
    graph = np.array([40, 40, *range(41), *range(40)], np.int32)
    graph.tofile(tmp_path / "indigo" / "input" / "line_40n_40e.egr")
    return tmp_path


def test_the_random_numbers_are_those_of_the_c_library():
    assert list(islice(suites._c_random(), 4)) == [1804289383, 846930886, 1681692777, 1714636915]


def test_indigo(indigo, monkeypatch):
    monkeypatch.setattr(suites, "BLOCKS", 2)
    (row,), somewhere, bounds = suites.indigo_rows(indigo, 1, lambda line: None)
    assert (row.racy, row.races, row.strict_races, row.missed) == (1, 1, 1, [])
    assert (row.bounds, row.out_of_bounds, somewhere, bounds) == (1, 1, 1, 1)
    assert (row.clean, row.false_alarms, row.strict_false_alarms) == (1, 0, 0)


def test_scor(tmp_path):
    (tmp_path / "microbenchmarks" / "src").mkdir(parents=True)
    for name, fence in (("race_block", "__threadfence_block()"), ("norace_gpu", "__threadfence()")):
        (tmp_path / "microbenchmarks" / "src" / f"{name}.cu").write_text(SCOR.replace("FENCE", fence))
    clean, racy = suites.scor_rows(tmp_path)
    assert (clean.race, clean.data, clean.sync) == (False, (), ())
    assert racy.race
    assert "the fence is .cta, and the reader is in another block: use __threadfence()" in racy.data[0]
    result = suites.run(None, tmp_path, 1, lambda line: None)
    assert result.good
    assert result.summary == "ScoR: 1 of 1 races, 0 reports on 1 clean codes"


def test_what_is_no_checkout_is_refused(tmp_path):
    for function in (lambda: suites.indigo_rows(tmp_path, 1, print), lambda: suites.scor_rows(tmp_path)):
        with pytest.raises(UserError, match="give a checkout of"):
            function()
    with pytest.raises(UserError, match="give the checkout of a suite"):
        suites.run(None, None, 1, print)
