"""The engine: executes a program one warp at a time in machine code.

**Execution.** An entry is decoded once (:mod:`.decoded`): each instruction becomes a few *records*, each an operation
and its rows of the warp's registers; each basic block becomes a range of records and an end. A launch fills the rows of
constants, and one loop (:mod:`.scheduler`) runs each cluster from its first instruction to its last. A warp runs until
it blocks. The lanes at its lowest block go first, under a mask. No Python runs between two instructions, or between two
blocks of the grid.

**Operations** (:mod:`warpsan.semantics`) are Python functions of values of all 32 lanes (:mod:`.lanes`), which LLVM
compiles through llvmlite: ``lambda a, b: a + b`` is a complete addition. They are compiled when a kernel first needs
them and kept in the user's cache (:mod:`.library`), under a key of all their inputs. LLVM contracts no operations and
gets no fast-math flags: the bits do not depend on the processor.

**Control flow** (scheduling, barriers, copies in flight, the checks) is Python on 64-bit integers and structs
(:mod:`.structs`) that :mod:`.translate` and LLVM turn into machine code, once for a machine. Numba took longer, because
it infers types that are all alike, and adds a dependency and the interpreter's exceptions. The memory is declared in
:mod:`.context` and :mod:`.memory`, and allocated in :mod:`.state`; operations take offsets from the same declarations.

**Checks.** Every access is checked for bounds and alignment before it happens, in every launch. With checks, records
before each access (:mod:`.watch`) look for races, accesses to memory that a copy still writes, and reads of unwritten
memory. A hazard, a possible hazard, a trap or a deadlock ends the first native run with a reason. Further runs
(:mod:`.reporting`) report or raise the actual errors, with every set of checks.

**Rules** of units (:mod:`.barrier_rules`, :mod:`.mbarriers`, :mod:`.unit_addresses`, :mod:`.transfers`,
:mod:`.flight_rules`, :mod:`.product_rules`, :mod:`.waits`), of addresses, of undefined values and of races
(:mod:`.races`, :mod:`.lane_races`, :mod:`.global_races`, :mod:`.map_fences`) are exact: the second run writes each
broken rule into a row (:mod:`.hazards`), and :mod:`warpsan.report.rows` words it. The first run may suspect races that
are none, and misses none.

**Blocks that communicate** through global memory (:mod:`.communication`) run one cluster after the other, on one
thread; releases are kept for later blocks (:mod:`.watch.releases`). All blocks of a cooperative launch run together, as
the blocks of a cluster do. The blocks of a chunk run together in a second run if one waits for a later one
(:func:`.communication.all_resident`). Under the random schedule, a few clusters run together if blocks poll the writes
of others.

**Undefined bytes** of shared memory end the first run, and so does a store to shared memory of a register that was
never set. The second run follows them (:mod:`.undefined`), and ends at a use; a third notes each use, continues, and is
reported (:mod:`.reporting`). Reads of unwritten global memory are detected if there is any
(:mod:`.watch.undefined_global`); its marks are bytes beside the arena, and each run has its own.

**Threads** take ranges of clusters, each with its own state (:mod:`.state`); native code holds no lock of the
interpreter. With checks, the global memory accesses of the threads' blocks are compared at the end.

**Asynchronous operations** (bulk copies, wgmma, st.async) are checked at issue (:mod:`.flights`), with vector clocks
and the two proxies (:mod:`.clocks`).

**Python** is called back (:mod:`.host`) for ``printf``, ``malloc`` and ``free``, for a tensor map that a kernel has
changed, and by instructions whose accesses a recorder collects. Launches with such calls run on one thread.

**Streams**: the places that a launch beside others accesses are kept (:mod:`~warpsan.engine.touched`). If the places of
two launches overlap, both run once more, and their accesses to these places are kept (:mod:`.histories`).

**Unsupported instructions** (docs/instructions.md) end a launch when a lane reaches them, with the exception that
decoding raised (:attr:`.decoded.Decoded.refused`) and the hazards so far.
"""
