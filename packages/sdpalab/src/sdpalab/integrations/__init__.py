"""The lab's attention within other libraries: each module registers it in its library's registry.

Nothing is registered, and no other library is imported, before a ``register()`` is called.
"""
