"""The engine: executes a program one warp at a time in machine code.

**What runs.** An entry is decoded once (:mod:`.decoded`): each instruction becomes a few *records*, an operation and
the rows of the warp's registers that it works on; each basic block becomes a stretch of records and how it ends. A
launch fills the rows of constants, and one loop (:mod:`.scheduler`) runs each cluster from its first instruction to its
last. A warp runs until it blocks. Of its lanes the lowest block goes first, under a mask. There is no Python between
two instructions, and none between two blocks of the grid.

**Operations** (:mod:`.operations`) are Python functions of values of all 32 lanes (:mod:`.lanes`), which LLVM compiles
through llvmlite: ``lambda a, b: a + b`` is the whole of an addition. They are compiled when a kernel first needs them
and kept in the user's cache (:mod:`.library`), under a key of everything that they depend on. Nothing is contracted and
there are no fast-math flags: the bits do not depend on the processor.

**Control flow** (scheduling, barriers, copies in flight, the checks) is Python on 64-bit integers that
:mod:`.translate` and LLVM turn into machine code, once for a machine. Numba, which was tried first, took longer,
because it must infer types that are all alike, and adds a dependency and the interpreter's exceptions.

**Checks.** Every access is checked for bounds and alignment before it happens, whatever the launch asks for. With
checks, records in front of each access (:mod:`.watch`) look for races, accesses to memory that a copy still writes, and
reads of what was never written. What might be a hazard, and every trap, deadlock or broken rule, ends the native run
with a reason. So native code may suspect more than what is wrong, and must never suspect less. What is wrong is then
reported, or raised, in further native runs (:mod:`.reporting`), whatever checks the launch has. One of them records
events (:mod:`.trace`); phases of barriers that order nothing new are no more than counted there
(:mod:`.empty_phases`).

**Blocks that communicate** through global memory (:mod:`.communication`) run one cluster after the other, on one
thread; what a release passes on is kept for later blocks (:mod:`.watch.releases`). All blocks of a cooperative launch
run together, as those of a cluster do; so do those of a chunk, in a second run, if one waits for a later one
(:func:`.communication.all_resident`); and, in a random order, those of a few clusters at a time where blocks poll what
others write, so that they meet there.

**Undefined bytes** of shared memory end the first run, and so does a store there of a register that was never set. The
second follows them (:mod:`.undefined`), and ends where they matter; a third goes on behind each such use, notes it, and
is reported (:mod:`.reporting`). Global memory that nobody has written is looked for where there is any
(:mod:`.watch.undefined_global`); its marks are bytes beside the arena, which each run has for itself.

**Threads** take stretches of clusters, each with a state of its own (:mod:`.state`); native code holds no lock of the
interpreter. With checks, what the threads' blocks touched in global memory is compared at the end.

Asynchronous operations (bulk copies, wgmma, st.async) are checked when they are issued (:mod:`.flights`), with vector
clocks and the two proxies (:mod:`.clocks`).

**Python** is called back (:mod:`.host`) for ``printf``, ``malloc`` and ``free``, for a tensor map that a kernel has
changed, and by instructions whose accesses a recorder collects. Where reads may be stale (:mod:`.stale`), it carries
out every access of lanes to global and shared memory. Launches with such calls run on one thread.

**Streams**: of a launch beside others the places are kept (:mod:`~warpsan.engine.touched`). Where those of two launches
may meet, both run once more, and their accesses there are kept (:mod:`.histories`).

**What is not modelled** (docs/instructions.md) ends a launch where a lane reaches it, with the exception that decoding
raised (:attr:`.decoded.Decoded.refused`), and with the hazards up to then.
"""
