"""The host side of a launch: arguments, memory, devices, streams, tensor maps and limits."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpsan.host.arena import Arena as Arena
    from warpsan.host.arguments import parameter_block as parameter_block
    from warpsan.host.cpus import usable_cpus as usable_cpus
    from warpsan.host.geometry import Dim3 as Dim3
    from warpsan.host.geometry import Geometry as Geometry
    from warpsan.host.limits import check_cluster as check_cluster
    from warpsan.host.limits import check_geometry as check_geometry
    from warpsan.host.memory import Extent as Extent
    from warpsan.host.options import CHECKS as CHECKS
    from warpsan.host.tensor_map import DESCRIPTOR_BYTES as DESCRIPTOR_BYTES
else:
    from warpsan.exports import exports

    __getattr__, __all__ = exports(
        {
            "warpsan.host.arena": ["Arena"],
            "warpsan.host.arguments": ["parameter_block"],
            "warpsan.host.cpus": ["usable_cpus"],
            "warpsan.host.geometry": ["Dim3", "Geometry"],
            "warpsan.host.limits": ["check_cluster", "check_geometry"],
            "warpsan.host.memory": ["Extent"],
            "warpsan.host.options": ["CHECKS"],
            "warpsan.host.tensor_map": ["DESCRIPTOR_BYTES"],
        }
    )
