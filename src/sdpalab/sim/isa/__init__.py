"""Instructions that order threads or issue asynchronous operations (:mod:`sdpalab.sim.native.steps`), one file a
family. Importing this package fills the table of handlers."""

from sdpalab.sim.isa import async_copy as async_copy
from sdpalab.sim.isa import async_store as async_store
from sdpalab.sim.isa import bulk_copy as bulk_copy
from sdpalab.sim.isa import cluster as cluster
from sdpalab.sim.isa import fence as fence
from sdpalab.sim.isa import mbarrier as mbarrier
from sdpalab.sim.isa import setmaxnreg as setmaxnreg
from sdpalab.sim.isa import tensor_copy as tensor_copy
from sdpalab.sim.isa import wgmma as wgmma
