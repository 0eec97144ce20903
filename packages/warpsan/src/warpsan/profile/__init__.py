"""Counters of a simulated launch, recorded accesses and pictures of them, and code that was not executed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpsan.engine.arrays import WARP as WARP
    from warpsan.profile.counters import Counters as Counters
    from warpsan.profile.counters import InstructionCount as InstructionCount
    from warpsan.profile.coverage import CodeOfEntry as CodeOfEntry
    from warpsan.profile.coverage import Shape as Shape
    from warpsan.profile.coverage import UnexecutedCode as UnexecutedCode
    from warpsan.profile.coverage import UnseenDecision as UnseenDecision
    from warpsan.profile.pictures import AccessPicture as AccessPicture
    from warpsan.profile.pictures import access_pictures as access_pictures
    from warpsan.profile.recording import AccessRecorder as AccessRecorder
    from warpsan.profile.recording import RecordedAccess as RecordedAccess
    from warpsan.profile.self_profile import OperationTime as OperationTime
    from warpsan.profile.self_profile import SelfProfile as SelfProfile
    from warpsan.profile.self_profile import merged as merged
    from warpsan.profile.tally import SECTOR as SECTOR
else:
    from warpsan.exports import exports

    __getattr__, __all__ = exports(
        {
            "warpsan.engine.arrays": ["WARP"],
            "warpsan.profile.counters": ["Counters", "InstructionCount"],
            "warpsan.profile.coverage": ["CodeOfEntry", "Shape", "UnexecutedCode", "UnseenDecision"],
            "warpsan.profile.pictures": ["AccessPicture", "access_pictures"],
            "warpsan.profile.recording": ["AccessRecorder", "RecordedAccess"],
            "warpsan.profile.self_profile": ["OperationTime", "SelfProfile", "merged"],
            "warpsan.profile.tally": ["SECTOR"],
        }
    )
