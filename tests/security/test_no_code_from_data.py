"""Nothing of the project makes code of data: read from the source, so that a line that nothing calls counts too."""

from __future__ import annotations

import ast

import pytest
from support.paths import ROOT

FILES = sorted(
    str(path.relative_to(ROOT)) for top in ("launchopt", "runner", "scripts") for path in (ROOT / top).rglob("*.py")
)
# Modules that turn bytes into objects of any class. What multiprocessing pickles goes to and comes from our children.
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "codeop"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "os.system", "os.popen", "torch.load"),
    *("pd.read_pickle", "pandas.read_pickle", "hydra.utils.instantiate", "hydra.utils.call"),
}
ALLOWED = {
    # torch.compile wants a function of its own for each kind of step; its source is made of names of ours, and numbers.
    "launchopt/devices/pytorch/compiled.py": {"exec", "compile"},
    # Machine code, which Numba pickles. A file is read only if this user wrote it and its checksum is right.
    "launchopt/compiled_files.py": {"pickle"},
}


def uses(source: str) -> set[str]:
    """What of the above a source imports or calls."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & METHODS
            found |= {str(node.module)} if str(node.module).partition(".")[0] in MODULES else set()
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found |= {name} & (CALLS | METHODS)
            found |= {f"{name}(allow_pickle)"} if any(each.arg == "allow_pickle" for each in node.keywords) else set()
            found |= {f"{name}(shell)"} if any(each.arg == "shell" for each in node.keywords) else set()
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", {"pickle"}),
        ("from marshal import loads", {"marshal"}),
        ("def f():\n    eval('1')", {"eval"}),
        ("re.compile('x')", set()),
        ("yaml.load(text)", {"yaml.load"}),
        ("from os import system", {"os.system"}),
        ("subprocess.run('x', shell=True)", {"subprocess.run(shell)"}),
        ("np.load(path, allow_pickle=True)", {"np.load(allow_pickle)"}),
    ],
)
def test_every_way_is_seen(source: str, found: set[str]) -> None:
    assert uses(source) == found


@pytest.mark.parametrize("file", FILES)
def test_makes_no_code_of_data(file: str) -> None:
    assert uses((ROOT / file).read_text()) == ALLOWED.get(file, set())
