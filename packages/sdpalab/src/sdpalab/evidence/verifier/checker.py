"""Check of all records of a bundle: the environment, and every attempt with its builds, cases and figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sdpalab.evidence.verifier.algebra import check_algebra
from sdpalab.evidence.verifier.archive import Members, canonical
from sdpalab.evidence.verifier.arrays import problem_of
from sdpalab.evidence.verifier.builds import check_build
from sdpalab.evidence.verifier.cases import Cases, excess_of
from sdpalab.evidence.verifier.facts import SPEED_UNITS
from sdpalab.evidence.verifier.findings import MALFORMED, Findings, Outcome
from sdpalab.judge.coverage import coverage_of
from sdpalab.problem import TWELVE_CASES

__all__ = ["Checker"]


class Checker(Findings):
    """Checks the records of one bundle."""

    def __init__(self, members: Members) -> None:
        super().__init__(members)
        self.cases = Cases(self)

    def run(self) -> Outcome:
        names = sorted(name for name in self.members if name.startswith("records/"))
        if not names:
            self.find("records", "there is none")
        records = [(name, *self.parsed(name)) for name in names]
        judged = [case for _, record, _ in records for case in cases_of(record)]
        if excess := excess_of(judged, [each for _, record, _ in records for each in cases_of(record, "algebra")]):
            self.find("records", excess)
            return self.outcome
        self.cases.derive(judged)
        for name, record, findings in (("environment.json", *self.parsed("environment.json")), *records):
            self.used.add(name)
            self.outcome.findings += findings
            check = self.check_attempt if name in names else self.check_environment
            try:
                check(name, record)
            except MALFORMED as error:
                self.find(name, f"malformed ({type(error).__name__}: {error})")
        for name in sorted(set(self.members) - self.used):
            self.find(name, "no record accounts for it")
        return self.outcome

    def check_environment(self, where: str, record: Mapping[str, Any]) -> None:
        harness = record["harness"]
        floors, findings = self.parsed("floors.json")
        self.outcome.findings += findings
        commit, dirty = harness["commit"], harness["dirty"]
        start = f"sdpalab-{(commit or 'nogit')[:12]}{'-dirty' if dirty else ''}-"
        if not str(self.manifest.get("name")).startswith(start):
            self.find(where, f"the bundle's name does not begin with {start}")
        if dirty != ("harness.diff" in self.members):
            self.find("harness.diff", "must be there if, and only if, the harness was dirty")
        for floor in floors["gpus"]:
            self.check_figures("floors.json", [*floor["floors"], *floor["peers"]], passed=True)

    def check_attempt(self, where: str, record: Mapping[str, Any]) -> None:
        self.same_keys(where, "attempt", record)
        outcomes = [check_build(self, f"{where} build {build['name']}", build) for build in record["builds"]]
        gates = [ok for ok, build in zip(outcomes, record["builds"], strict=True) if build["gate"] is not None]
        built = {build["files"]["kernel.ptx"] for build in record["builds"]}
        for name, digest in record.get("sources", {}).items():
            self.used.add(name)
            if not name.startswith("source/") or hashlib.sha256(self.members.get(name, b"")).hexdigest() != digest:
                self.find(where, f"{name} is missing or is not the source that was judged")
        verdict = record["verdict"]
        passed = verdict is not None and verdict["status"] == "PASSED"
        self.check_figures(where, record["figures"], passed)
        gate = {True: "kept", False: "BROKEN"}[all(gates)] if gates else "none"
        label = " ".join(filter(None, (record["kernel"], record["config"])))
        if verdict is None:
            if not record["failure"]:
                self.find(where, "neither a verdict nor a failure that says why")
            self.outcome.summary.append(f"{label}: not judged ({record['failure']}); gate {gate}")
            return
        self.same_keys(where, "verdict", verdict)
        derived = sum(self.cases.check(f"{where} case {case['name']}", case, built) for case in verdict["cases"])
        declared = {canonical(case["run"]["numerics"]) for case in verdict["cases"] if "numerics" in case["run"]}
        if len(declared) > 1:
            self.find(where, "its cases declare different numerics")
        if len({"lse" in case["digests"] for case in verdict["cases"] if case["errors"]}) > 1:
            self.find(where, "some of its cases have a log-sum-exp, and others have none")
        bad = [case["status"] for case in verdict["cases"] if case["status"] != "PASSED"]
        unjudged = [str(name) for name in verdict.get("unjudged", ())]
        if set(unjudged) & {case["name"] for case in verdict["cases"]}:
            self.find(where, "a case is judged and left unjudged")
        exact = [check_algebra(self, f"{where} {each['name']}", each, built) for each in verdict.get("algebra", ())]
        for entry in verdict.get("code", ()):
            self.same_keys(where, "code", entry)
            if not 0 <= entry["executed"] <= entry["blocks"]:
                self.find(where, f"{entry['executed']} of {entry['blocks']} blocks of {entry['entry']} executed")
            for each in entry["unjudged"]:
                self.same_keys(where, "unjudged code", each)
        unequal = ["INCORRECT"] if "UNEQUAL" in exact else []
        status = next((s for s in [*bad, *unequal] if s != "INFRA_ERROR"), "INFRA_ERROR")
        if not bad and not unequal and (verdict["cases"] or unjudged):
            status = "INTERRUPTED" if unjudged else "PASSED"
        if verdict["status"] != status or verdict["passed"] is not (status == "PASSED"):
            self.find(where, f"the verdict says {verdict['status']}, and its cases say {status}")
        contract = sum(case["original_contract"] is True for case in verdict["cases"])
        if verdict["original_contract"] != contract:
            self.find(where, f"{contract} of its cases keep the original contract, not {verdict['original_contract']}")
        problems = [problem_of(case["problem"]) for case in verdict["cases"]]
        covered = coverage_of(problems, any((case["errors"] or {}).get("lse") for case in verdict["cases"]))
        if "covers" in verdict and verdict["covers"] != covered:
            self.find(where, f"the verdict covers {', '.join(verdict['covers'])}, which is not what its cases have")
        if "confinement" in verdict and verdict["confinement"] != confinement_of(verdict["cases"]):
            self.find(where, f"the verdict says confinement {verdict['confinement']}, and its cases do not")
        passed_on = [
            (problem, case["seed"])
            for problem, case in zip(problems, verdict["cases"], strict=True)
            if case["inputs"] == "normal" and case["status"] == "PASSED"
        ]
        twelve = sum(pair in passed_on for pair in TWELVE_CASES)
        algebraic = f"; {exact.count('EQUAL')} of {len(exact)} problems equal in exact arithmetic" if exact else ""
        left = f", {len(unjudged)} left unjudged" if unjudged else ""
        self.outcome.summary.append(
            f"{label}: {verdict['status']} on {verdict['device']}; {derived} of {len(verdict['cases'])} cases "
            f"re-derived from raw arrays{left}; {twelve} of the 12 contract cases passed, {contract} of all cases keep "
            f"the original contract{algebraic}; gate {gate}; declared numerics "
            + ", ".join(f"{k} {v}" for text in declared for k, v in json.loads(text).items())
        )

    def check_figures(self, where: str, figures: list[Mapping[str, Any]], passed: bool) -> None:
        for figure in figures:
            self.same_keys(where, "figure", figure)
            speed, kind, name = figure["unit"] in SPEED_UNITS, figure["kind"], figure["name"]
            if kind not in ("measured", "simulated", "modelled", "published"):
                self.find(where, f"figure {name}: {kind} is not a kind of figure")
            if kind == "simulated" and speed:
                self.find(where, f"figure {name}: what is simulated has no time and no speed")
            if speed and not passed:
                self.find(where, f"figure {name}: a speed without PASSED")
            if not (figure["gpu"] if kind == "measured" else kind == "simulated" or figure["source"]):
                self.find(where, f"figure {name}: it names neither its GPU nor its source")


def cases_of(record: Mapping[str, Any], kind: str = "cases") -> list[Any]:
    """Cases of a record, or its problems in exact arithmetic (``algebra``); empty for a malformed record."""
    try:
        return list(record["verdict"][kind])
    except MALFORMED:
        return []


def confinement_of(cases: Sequence[Mapping[str, Any]]) -> str:
    """Confinement of the processes of the cases: ``processes`` if that of any case was."""
    stated = {case["run"]["confinement"] for case in cases if "confinement" in case["run"]}
    return "processes" if "processes" in stated else next(iter(stated), "")
