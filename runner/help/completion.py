"""Completes the words of a command line in bash, zsh and fish.

    eval "$(launchopt completion bash)"          now, or in ~/.bashrc
    eval "$(launchopt completion zsh)"           now, or in ~/.zshrc after compinit
    launchopt completion fish | source           now, or in ~/.config/fish/config.fish
    launchopt completion words run mode=ba       what the scripts call: prints the candidates for the last word

Candidates are subcommands, groups with their options, settings with the names of their values, modes behind `against=`,
each value of a list such as `mode=batched,graph`, and the options of the reading commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module

from runner.commands import SETTING_STARTS, SUBCOMMANDS
from runner.ending import end
from runner.reading import CommandParser

ASK = "launchopt completion words"
CONFIG_DIR = ("--config-dir", "-cd")
# Each passes the words behind `launchopt`, the unfinished one last, and offers files if there is no candidate.
SCRIPTS = {
    # bash splits words at "=" and keeps what stands before it: candidates lose that part.
    "bash": rf"""_launchopt() {{
    local line words word cut
    line=${{COMP_LINE:0:COMP_POINT}}
    read -ra words <<< "$line"
    [[ $line == *" " ]] && words+=("")
    word=${{words[-1]}}
    cut=""
    [[ $COMP_WORDBREAKS == *"="* && $word == *"="* ]] && cut="${{word%%=*}}="
    mapfile -t COMPREPLY < <({ASK} "${{words[@]:1}}" 2>/dev/null)
    COMPREPLY=("${{COMPREPLY[@]#"$cut"}}")
}}
complete -o nospace -o default -F _launchopt launchopt""",
    # -S '': no blank behind `KEY=`.
    "zsh": rf"""_launchopt() {{
    local -a found
    found=("${{(@f)$({ASK} "${{(@)words[2,CURRENT]}}" 2>/dev/null)}}")
    found=(${{found:#}})
    if (( $#found )); then compadd -S '' -a found; else _files; fi
}}
compdef _launchopt launchopt""",
    "fish": rf"""function __launchopt
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    set -l found ({ASK} $words[2..-1] "$last" 2>/dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path "$last"
    end
end
complete -c launchopt -f -a '(__launchopt)'""",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv)
    for line in [SCRIPTS[options.what]] if options.what in SCRIPTS else candidates(options.words):
        print(line)
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Return what the last word may become; `words` are those after `launchopt`."""
    last = words[-1] if words else ""
    if len(words) > 1:
        is_run = words[0] == "run" or "=" in words[0] or words[0].startswith(SETTING_STARTS)
        found = list(_settings(last, words[:-1])) if is_run else _options(words[0]) if last.startswith("-") else []
    else:
        found = [*SUBCOMMANDS, *(_settings(last) if last else ())]
    return sorted(each for each in found if each.startswith(last))


def _settings(last: str, before: Sequence[str] = ()) -> Iterator[str]:
    """Yield `KEY=` for every setting and group; behind `KEY=` the values of that one that have names.

    before: the words before the last one. They may name plugins, and the user's folder of configs.
    """
    from runner.config.against import ALL, AUTO
    from runner.config.composing import group_options
    from runner.config.plugged import register_named
    from runner.config.typed.names import documented

    key, equals, given = last.partition("=")
    options = group_options(_folder(before))
    register_named(before)
    modes = [mode for mode in options["mode"] if mode != AUTO]
    values = documented() | options | {"against": [*modes, ALL]}
    listed, comma, _ = given.rpartition(",")
    taken = listed.split(",")
    yield from (
        (f"{key}={listed}{comma}{value}" for value in values.get(key, ()) if value not in taken)
        if equals
        else (f"{each}=" for each in values)
    )


def _folder(words: Sequence[str]) -> str | None:
    """Return the folder that --config-dir names; None if it is not among the words."""
    for place, word in enumerate(words):
        name, equals, folder = word.partition("=")
        if name in CONFIG_DIR:
            return folder if equals else next(iter(words[place + 1 :]), None)
    return None


def _options(name: str) -> list[str]:
    """Return the options of a reading command, such as `--json` of `report`; empty if there is no such command."""
    if name not in SUBCOMMANDS:
        return []
    module = import_module(SUBCOMMANDS[name].module)
    parser = getattr(module, "_parser", None)
    return parser().option_names() if parser else ["--help"]


def _parser() -> CommandParser:
    parser = CommandParser("completion", __doc__)
    parser.add_argument(
        "what", metavar="SHELL", choices=(*SCRIPTS, "words"), help="a shell, for its script; or candidates for words"
    )
    parser.add_argument("words", nargs="...", metavar="WORD", help="the words so far, the unfinished one last")
    return parser


if __name__ == "__main__":
    end(main)
