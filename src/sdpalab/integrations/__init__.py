"""The lab's attention within other libraries: each module registers it where its library looks for implementations.

Nothing is registered, and no other library is imported, before a ``register()`` is called.
"""
