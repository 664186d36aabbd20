"""`pumpline completion`: scripts that let bash, zsh and fish complete commands and flags.

They are made from the tables of flags, so they have what `--help` has. Topics and channels are
asked for, from the cluster that the environment names. NSQ's tools and the daemons
are completed under their own names as well.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from pumpline.core.text.flags import Flag, table
from pumpline.tools.arguments import CommandLine, UsageError, run_command
from pumpline.tools.backup.command import ACTIONS as BACKUP_ACTIONS
from pumpline.tools.context import ACTIONS as CONTEXT_ACTIONS
from pumpline.tools.pipeline import PIPELINES
from pumpline.tools.pumpline import COMMANDS, NSQ_NAMES, module_of
from pumpline.tools.tool import Tool
from pumpline.tools.verbs.deadletters import ACTIONS

OWN_NAMES = {**NSQ_NAMES, "nsqd": "nsqd", "nsqlookupd": "nsqlookupd", "nsqadmin": "nsqadmin"}
"""Programs that are installed beside pumpline, by name; the commands they are."""
TOPIC_NAMES = "pumpline topics --names --timeout=1s 2>/dev/null"
CHANNEL_NAMES = 'pumpline channels "{}" --names --timeout=1s 2>/dev/null'
FISH_CHANNEL_NAMES = CHANNEL_NAMES.replace('"{}"', "(commandline -opc)[3]")


class Completed(NamedTuple):
    """What may follow the name of a command."""

    summary: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]
    places: tuple[str, ...]  # what its arguments name, in order: topic, channel


def completed_commands() -> dict[str, Completed]:
    words = {
        "backup": BACKUP_ACTIONS,
        "completion": tuple(SHELLS),
        "context": CONTEXT_ACTIONS,
        "deadletters": ACTIONS,
        "holds": ("delete",),
        "pipeline": tuple(PIPELINES),
    }
    return {
        name: Completed(command.summary, flags_of(name), words.get(name, ()), places_of(name))
        for name, command in COMMANDS.items()
    }


def flags_of(command: str) -> tuple[Flag, ...]:
    """The flags of a command, by name; none of those that argparse reads."""
    module: Any = import_module(module_of(command))
    found: Sequence[Flag] = getattr(module, "FLAGS", ())
    for value in vars(module).values():
        if isinstance(value, Tool):
            found = table(value.options)
    return tuple(sorted(found, key=lambda flag: flag.name))


def places_of(command: str) -> tuple[str, ...]:
    """`topic`, or `topic` and `channel`, if that is what the first arguments of a verb are."""
    verb: Any = getattr(import_module(module_of(command)), "VERB", None)
    names = re.findall(r"[<\[]([^>\]]+)[>\]]", verb.places) if verb else []
    if names[:1] != ["topic"]:
        return ()
    wanted = ["topic", "channel"]
    return tuple(name for name, each in zip(names, wanted, strict=False) if name == each)


# -- bash ---------------------------------------------------------------------------------------


def bash(commands: Mapping[str, Completed]) -> str:
    cases = [
        f'    {name}) words="{" ".join([*each.words, *_dashed(each.flags)])}" ;;'
        for name, each in commands.items()
    ]
    own = [f"    {name}) command={command} ;;" for name, command in OWN_NAMES.items()]
    with_topic, with_channel = (_with_place(commands, each) for each in ("topic", "channel"))
    return "\n".join(
        [
            "# Completion of pumpline for bash: source <(pumpline completion bash)",
            "_pumpline() {",
            "  local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} words",
            "  case ${COMP_WORDS[0]##*/} in",
            *own,
            "    *)",
            "      if [ $COMP_CWORD -eq 1 ]; then",
            f'        COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$current"))',
            "        return",
            "      fi ;;",
            "  esac",
            "  case $command in",
            *cases,
            "  esac",
            "  case $COMP_CWORD:$command:$current in",
            "    *:-*) ;;",
            f'    {_patterns(2, with_topic)}) words="$words $({TOPIC_NAMES})" ;;',
            f"    {_patterns(3, with_channel)})",
            f'      words="$words $({CHANNEL_NAMES.format("${COMP_WORDS[2]}")})" ;;',
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            f"complete -o default -F _pumpline pumpline {' '.join(OWN_NAMES)}",
            "",
        ]
    )


# -- zsh ----------------------------------------------------------------------------------------


def zsh(commands: Mapping[str, Completed]) -> str:
    named = [f"    {_quoted(f'{name}:{each.summary}')}" for name, each in commands.items()]
    cases = []
    for name, each in commands.items():
        specs = [_zsh_flag(flag) for flag in each.flags]
        words = _quoted(f"1: :({' '.join(each.words)})") if each.words else ""
        places = [
            f"'{index}: :_pumpline_{place}s'" for index, place in enumerate(each.places, start=1)
        ]
        specs += [spec for spec in (words, *places, "'*: :_files'") if spec]
        cases.append("    " + f"{name}) _arguments -S {' '.join(specs)} ;;")
    own = [f"    {name}) words[1]={command} ;;" for name, command in OWN_NAMES.items()]
    channels = CHANNEL_NAMES.format("$line[1]")
    return "\n".join(
        [
            f"#compdef pumpline {' '.join(OWN_NAMES)}",
            "# Completion of pumpline for zsh: source <(pumpline completion zsh)",
            f'_pumpline_topics() {{ compadd -- ${{(f)"$({TOPIC_NAMES})"}} }}',
            f'_pumpline_channels() {{ compadd -- ${{(f)"$({channels})"}} }}',
            "_pumpline() {",
            "  local -a commands line",
            "  commands=(",
            *named,
            "  )",
            "  case ${words[1]:t} in",
            *own,
            "    *)",
            "      if (( CURRENT == 2 )); then _describe command commands; return; fi",
            "      shift words; (( CURRENT-- )) ;;",
            "  esac",
            "  case $words[1] in",
            *cases,
            "  esac",
            "}",
            # As a file in $fpath it is run when something is to be completed for the first time.
            'if [ "$funcstack[1]" = _pumpline ]; then _pumpline "$@"',
            f"else compdef _pumpline pumpline {' '.join(OWN_NAMES)}; fi",
            "",
        ]
    )


def _zsh_flag(flag: Flag) -> str:
    text = re.sub(r"([\[\]:\\])", r"\\\1", _first_words(flag))
    again = "*" if flag.kind.is_repeatable else ""
    value = "" if flag.kind.is_boolean else f":{flag.kind.label}:_files"
    return _quoted(f"{again}--{flag.name}{'=' if value else ''}[{text}]{value}")


# -- fish ---------------------------------------------------------------------------------------


def fish(commands: Mapping[str, Completed]) -> str:
    lines = ["# Completion of pumpline for fish: pumpline completion fish | source"]
    for name, each in commands.items():
        where = f"-c pumpline -n {_quoted(f'__fish_seen_subcommand_from {name}')}"
        summary = _quoted(each.summary)
        lines.append(f"complete -c pumpline -n __fish_use_subcommand -f -a {name} -d {summary}")
        lines += [f"complete {where} {_fish_flag(flag)}" for flag in each.flags]
        for index, place in enumerate(each.places, start=2):
            names = TOPIC_NAMES if place == "topic" else FISH_CHANNEL_NAMES
            count = f"test (count (commandline -opc)) -eq {index}"
            there = _quoted(f"__fish_seen_subcommand_from {name}; and {count}")
            lines.append(f"complete -c pumpline -f -n {there} -a {_quoted(f'({names})')}")
        if each.words:
            lines.append(f"complete {where} -f -a {_quoted(' '.join(each.words))}")
    for program, command in OWN_NAMES.items():
        own = commands[command].flags
        lines += [f"complete -c {program} {_fish_flag(flag)}" for flag in own]
    return "\n".join([*lines, ""])


def _fish_flag(flag: Flag) -> str:
    value = "" if flag.kind.is_boolean else " -r"
    return f"-l {flag.name}{value} -d {_quoted(_first_words(flag))}"


# -- what they share ----------------------------------------------------------------------------


def _with_place(commands: Mapping[str, Completed], place: str) -> list[str]:
    return [name for name, each in commands.items() if place in each.places]


def _patterns(index: int, commands: list[str]) -> str:
    """Of a bash `case`: the word at `index` of one of these commands."""
    return "|".join(f"{index}:{command}:*" for command in commands)


def _dashed(flags: Sequence[Flag]) -> list[str]:
    return [f"--{flag.name}" for flag in flags]


def _first_words(flag: Flag) -> str:
    """The help up to its first bracket or full stop: a completion has one line for it."""
    return re.split(r" \(|; |\. ", flag.help, maxsplit=1)[0]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS: dict[str, Callable[[Mapping[str, Completed]], str]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}
COMMAND = CommandLine(
    name="completion",
    summary="print a script with which a shell completes commands and flags",
    places="<shell>",
    flags=(),
    examples="""
        source <(pumpline completion bash)
        pumpline completion zsh > _pumpline
        pumpline completion fish > pumpline.fish
    """,
)
FLAGS = COMMAND.flags


def run(_: dict[str, Any], arguments: list[str]) -> int:
    (shell,) = arguments
    if shell not in SHELLS:
        raise UsageError(f"{shell}: it is one of {', '.join(SHELLS)}")
    print(SHELLS[shell](completed_commands()), end="")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(COMMAND, argv, run)


if __name__ == "__main__":
    sys.exit(main())
