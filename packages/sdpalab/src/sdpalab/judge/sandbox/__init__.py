"""The sandbox: guarded processes that hold an untrusted candidate and execute its plan, and the wire to them."""
