"""Public formats of kernel submissions, as they are: each becomes a problem and a candidate of the judge.

:func:`submissions_in` finds submissions in files and folders, and :func:`audit` judges them. An adapter
(:mod:`~sdpalab.formats.adapters`) runs in the candidate's process: it imports the submission's files and calls its
entry point in the format's convention. A task that is not attention is refused with a sentence.
"""

from sdpalab.formats.audit import Audited, audit
from sdpalab.formats.submission import Submission, submissions_in
from sdpalab.formats.trace import trace_of, write_traces

__all__ = ["Audited", "Submission", "audit", "submissions_in", "trace_of", "write_traces"]
