"""A verdict as JUnit XML for CI systems, with a test case for each case of the judge."""

from __future__ import annotations

from xml.etree import ElementTree

from sdpalab.judge.algebra.outcome import AlgebraStatus
from sdpalab.judge.verdict import Status, Verdict

__all__ = ["to_junit"]


def to_junit(verdict: Verdict, seconds: float) -> str:
    """The XML text: one suite, named after the kernel and its configuration.

    A failed case is a ``failure``, or an ``error`` if the machine failed; a case without a judgement is ``skipped``, as
    is a problem that was not run in exact arithmetic; an UNEQUAL one is a ``failure``.
    Source: the JUnit XML format as Jenkins, GitLab and pytest read and write it.

    Parameters
    ----------
    verdict : Verdict
    seconds : float
        Wall clock of the whole judgement; cases have no time of their own.
    """
    statuses = [case.status for case in verdict.cases if not case.passed]
    errors = statuses.count(Status.INFRA_ERROR)
    name = " ".join(filter(None, (verdict.kernel, verdict.config)))
    unequal = sum(each.status is AlgebraStatus.UNEQUAL for each in verdict.algebra)
    not_run = sum(each.status not in (AlgebraStatus.UNEQUAL, AlgebraStatus.EQUAL) for each in verdict.algebra)
    counts = {
        "tests": len(verdict.cases) + len(verdict.unjudged) + len(verdict.algebra),
        "failures": len(statuses) - errors + unequal,
        "errors": errors,
        "skipped": len(verdict.unjudged) + not_run,
    }
    attributes = {**{key: str(value) for key, value in counts.items()}, "time": f"{seconds:.3f}"}
    root = ElementTree.Element("testsuites", {"name": "sdpalab judge", **attributes})
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, **attributes})
    about = {"device": verdict.device, "level": verdict.level, "status": verdict.status.value}
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in about.items():
        ElementTree.SubElement(properties, "property", {"name": key, "value": value})
    for case in verdict.cases:
        test = ElementTree.SubElement(suite, "testcase", {"classname": verdict.kernel, "name": case.name})
        if not case.passed:
            kind = "error" if case.status is Status.INFRA_ERROR else "failure"
            reason = _xml_text(case.reason)
            failure = ElementTree.SubElement(test, kind, {"type": case.status.value, "message": reason})
            failure.text = reason
    for unjudged in verdict.unjudged:
        test = ElementTree.SubElement(suite, "testcase", {"classname": verdict.kernel, "name": unjudged})
        ElementTree.SubElement(test, "skipped", {"message": "not judged: judging was stopped before it"})
    for each in verdict.algebra:
        test = ElementTree.SubElement(suite, "testcase", {"classname": verdict.kernel, "name": each.name})
        if each.status is not AlgebraStatus.EQUAL:
            kind = "failure" if each.status is AlgebraStatus.UNEQUAL else "skipped"
            ElementTree.SubElement(test, kind, {"type": each.status.value, "message": _xml_text(each.reason)})
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _xml_text(text: str) -> str:
    """``text`` without the characters that XML 1.0 forbids."""
    return "".join(char if char in "\t\n" or (char >= " " and char not in "\ufffe\uffff") else "?" for char in text)
