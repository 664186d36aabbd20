"""`pumpline doctor`: look at a cluster, say what is wrong, and exit as monitoring checks do."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pumpline.cluster.health import Level
from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.flags import STRINGS, option
from pumpline.tools.arguments import UsageError
from pumpline.tools.doctor.checks import CHECKS, Finding, findings_of
from pumpline.tools.doctor.evidence import Evidence, gather_evidence
from pumpline.tools.standard_streams import StdoutError
from pumpline.tools.verbs.verb import Call, Verb, VerbOptions, run_verb

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.CRITICAL: "bold red"}


@dataclass(slots=True, kw_only=True)
class DoctorOptions(VerbOptions):
    skip: list[str] = option(STRINGS, list, "leave out this check (may be repeated)")


def run(call: Call[DoctorOptions]) -> int:
    skipped = call.options.skip
    for name in skipped:
        if name not in CHECKS:
            raise UsageError(f"--skip is one of {', '.join(CHECKS)}")
    timeout_s = call.options.timeout_ns / NS_PER_S
    evidence = gather_evidence(call.cluster, call.options.token_file, timeout_s)
    findings = [each for each in findings_of(evidence) if each.check not in skipped]
    worst = max((each.level for each in findings), default=Level.OK)
    try:
        if call.out.is_table:
            _show(evidence, findings, skipped)
        else:
            call.out.document(_document(evidence, findings, skipped, worst))
    except StdoutError as error:
        if not error.is_closed:
            raise
    return worst  # whether or not somebody reads all of it


def _document(
    evidence: Evidence, findings: list[Finding], skipped: Sequence[str], worst: Level
) -> dict[str, object]:
    return {
        "status": worst.name.lower(),
        "nodes": len(evidence.processes),
        "nsqlookupds": len(evidence.lookupds),
        "checks": [name for name in CHECKS if name not in skipped],
        "findings": [
            {
                "level": each.level.name.lower(),
                "check": each.check,
                "subject": each.subject,
                "text": each.text,
            }
            for each in findings
        ],
    }


def _show(evidence: Evidence, findings: list[Finding], skipped: Sequence[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for name in CHECKS:
        mine = [each for each in findings if each.check == name]
        level = max((each.level for each in mine), default=Level.OK)
        word = "skipped" if name in skipped else level.name
        line = Text(f"{word:<8}", style="dim" if name in skipped else STYLES[level])
        console.print(line.append(f"  {name}", style="not bold default"))
        for each in mine:
            console.print(Text(f"          {each.subject}: {each.text}"))
    nodes, lookupds = len(evidence.processes), len(evidence.lookupds)
    through = f" and {_counted(lookupds, 'nsqlookupd')}" if lookupds else ""
    result = _counted(len(findings), "finding") if findings else "all well"
    console.print(Text(f"\n{_counted(nodes, 'nsqd')}{through} looked at: {result}"))


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' if number != 1 else ''}"


VERB = Verb(
    name="doctor",
    summary="check a cluster; exit 0 if all is well, 1 with warnings, 2 if it is critical",
    places="",
    options=DoctorOptions,
    examples="""
        pumpline doctor
        pumpline doctor --lookupd 127.0.0.1:4161 --json
        pumpline doctor --skip consumers --skip paused
    """,
    run=run,
    is_mixed=True,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
