"""The lab's attention within other libraries: each module registers it in its library's registry.

``register()`` of a module does the registration; other libraries are not imported before.
"""
