"""Completes the words of a command line in bash.

    eval "$(launchopt completion bash)"          now, or in ~/.bashrc
    launchopt completion words run mode=ba       what the script asks: a line a candidate for the last word

Candidates are subcommands, groups with their options, and settings with the names of their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runner.commands import SETTING_STARTS, SUBCOMMANDS
from runner.reading import CommandParser
from runner.screen.pager import until_closed

# bash splits words at "=" and keeps what stands before it: candidates lose that part.
BASH = r"""_launchopt() {
    local line words word cut
    line=${COMP_LINE:0:COMP_POINT}
    read -ra words <<< "$line"
    [[ $line == *" " ]] && words+=("")
    word=${words[-1]}
    cut=""
    [[ $COMP_WORDBREAKS == *"="* && $word == *"="* ]] && cut="${word%%=*}="
    mapfile -t COMPREPLY < <(launchopt completion words "${words[@]:1}" 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
}
complete -o nospace -o default -F _launchopt launchopt"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv)
    print(BASH if options.what == "bash" else "\n".join(candidates(options.words)))
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Return what the last word may become; `words` are those after `launchopt`."""
    last = words[-1] if words else ""
    if len(words) > 1:
        is_run = words[0] == "run" or "=" in words[0] or words[0].startswith(SETTING_STARTS)
        found = list(_settings(last)) if is_run else []
    else:
        found = [*SUBCOMMANDS, *(_settings(last) if last else ())]
    return sorted(each for each in found if each.startswith(last))


def _settings(last: str) -> Iterator[str]:
    """Yield `KEY=` for every setting and group; behind `KEY=` the values of that one that have names."""
    from runner.config.composing import group_options
    from runner.config.names import documented

    key, equals, _ = last.partition("=")
    values = documented() | group_options()
    yield from (f"{key}={value}" for value in values.get(key, ())) if equals else (f"{each}=" for each in values)


def _parser() -> CommandParser:
    parser = CommandParser("completion", __doc__)
    parser.add_argument("what", choices=("bash", "words"), help="the script of a shell, or candidates for words")
    parser.add_argument("words", nargs="...", metavar="WORD", help="the words so far, the unfinished one last")
    return parser


if __name__ == "__main__":
    raise SystemExit(until_closed(main))
