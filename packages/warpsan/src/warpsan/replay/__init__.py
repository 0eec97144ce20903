"""Replay of the events that order threads, on a machine that moves no data: after a suspicion of native code, the
instructions that order threads or issue asynchronous operations (:mod:`warpsan.engine.steps`) are executed again here,
and the checks receive their events.

Each family of instructions has a file, and so has each of their units: the barriers of a block (:mod:`.barriers`),
mbarriers (:mod:`.mbarriers`), bulk copies in flight (:mod:`.bulk_copies`) and products in
flight (:mod:`.warpgroups`). Importing this package fills the table of handlers (:mod:`.decoder`).
"""

from warpsan.replay import async_copy as async_copy
from warpsan.replay import async_store as async_store
from warpsan.replay import bulk_copy as bulk_copy
from warpsan.replay import cluster as cluster
from warpsan.replay import fence as fence
from warpsan.replay import mbarrier as mbarrier
from warpsan.replay import tensor_copy as tensor_copy
from warpsan.replay import wgmma as wgmma
