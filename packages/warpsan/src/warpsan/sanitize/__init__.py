"""Launch files, and launches repeated in every order of the warps."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpsan.sanitize.case import PtxCase as PtxCase
    from warpsan.sanitize.case import case_of as case_of
    from warpsan.sanitize.case import files_of_case as files_of_case
    from warpsan.sanitize.case import read_case as read_case
    from warpsan.sanitize.launch_file import launch_schema as launch_schema
    from warpsan.sanitize.sanitizer import ASYNC_MODES as ASYNC_MODES
    from warpsan.sanitize.sanitizer import MAX_STEPS as MAX_STEPS
    from warpsan.sanitize.sanitizer import SCHEDULES as SCHEDULES
    from warpsan.sanitize.sanitizer import Collected as Collected
    from warpsan.sanitize.sanitizer import Modes as Modes
    from warpsan.sanitize.sanitizer import Progress as Progress
    from warpsan.sanitize.sanitizer import Sanitized as Sanitized
    from warpsan.sanitize.sanitizer import sanitize_case as sanitize_case
else:
    from warpsan.exports import exports

    __getattr__, __all__ = exports(
        {
            "warpsan.sanitize.case": ["PtxCase", "case_of", "files_of_case", "read_case"],
            "warpsan.sanitize.launch_file": ["launch_schema"],
            "warpsan.sanitize.sanitizer": [
                "ASYNC_MODES",
                "Collected",
                "MAX_STEPS",
                "Modes",
                "Progress",
                "SCHEDULES",
                "Sanitized",
                "sanitize_case",
            ],
        }
    )
