"""The sandbox: guarded processes that load an untrusted candidate and execute its plan, and the wire to them."""
