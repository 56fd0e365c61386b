"""Rules of the house that a reader should not have to check: function length, folder notes, leftovers."""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCREEN_LINES = 60
RATCHET = Path(__file__).with_name("longest_functions.txt")
GENERATED = ("python/llmsrv/v1/",)


def tracked_files():
    """What git tracks, or, in an unpacked source archive, what is there."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        names = listed.stdout.splitlines()
    else:
        names = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]
        names = [name for name in names if not name.startswith(("build/", "dist/"))]
    return [name for name in names if (ROOT / name).is_file() and not name.startswith(GENERATED)]


def cpp_functions(path):
    """(name, lines) of definitions that start and end in column zero, as our formatting has them."""
    lines = path.read_text().splitlines()
    for start, line in enumerate(lines):
        opens = re.match(r"[A-Za-z_].*[({]$|[A-Za-z_].*\)[^;]*$|[A-Za-z_].*,$", line)
        if not opens or line.startswith(("namespace", "class", "struct", "enum", "using", "template", "extern")):
            continue
        name = re.search(r"([\w:~]+)\(", line)
        end = next((i for i in range(start, len(lines)) if lines[i] == "}"), None)
        body_starts = next((i for i in range(start, len(lines)) if lines[i].endswith("{")), None)
        if name and end is not None and body_starts is not None and body_starts < end:
            between = lines[start + 1 : body_starts]
            if all(re.match(r"\s", text) or not text for text in between):
                yield name.group(1), end - start + 1


def python_functions(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def long_functions():
    found = {}
    for name in tracked_files():
        path = ROOT / name
        if path.suffix in {".cc", ".h", ".cu", ".cuh"}:
            functions = cpp_functions(path)
        elif path.suffix == ".py" and not name.startswith("tests/"):
            functions = python_functions(path)
        else:
            continue
        for function, lines in functions:
            if lines > SCREEN_LINES:
                found[f"{name}:{function}"] = lines
    return found


def test_functions_fit_on_a_screen_and_the_list_of_exceptions_only_shrinks():
    allowed = {}
    for line in RATCHET.read_text().splitlines():
        if line and not line.startswith("#"):
            lines, name = line.split(maxsplit=1)
            allowed[name] = int(lines)
    found = long_functions()
    grown = {name: lines for name, lines in found.items() if lines > allowed.get(name, SCREEN_LINES)}
    assert not grown, f"split these by meaning: {grown}"
    stale = {name: lines for name, lines in allowed.items() if found.get(name, 0) < lines}
    assert not stale, f"these have shrunk; shorten {RATCHET.name}: {stale}"


def test_every_folder_of_code_has_its_note():
    folders = {
        Path(name).parent for name in tracked_files() if Path(name).suffix in {".py", ".cc", ".cu", ".cuh", ".proto"}
    }
    missing = []
    for folder in sorted(folders):
        parents = [folder, *folder.parents]
        # tests/, bench/ and protos/ have one note for all of their folders; .ci is described in the README.
        if folder.parts and folder.parts[0] in {"tests", "bench", "protos"}:
            parents = [Path(folder.parts[0])]
        elif folder in (Path("."), Path(".ci")):
            continue
        elif folder.parts[0] == "cuda":
            parents = [folder, Path("cuda")]
        else:
            parents = [folder] if folder != Path("python/bindings/testing") else [Path("python/bindings")]
        if not any((ROOT / parent / "README.md").is_file() for parent in parents):
            missing.append(folder.as_posix())
    assert not missing, missing


NAMED_PATH = re.compile(r"`((?:cpp|python|protos|tests|bench|third_party|\.ci)/[\w./-]+)`")


def test_paths_named_in_notes_exist():
    wrong = []
    for name in tracked_files():
        if not name.endswith("README.md"):
            continue
        for path in NAMED_PATH.findall((ROOT / name).read_text()):
            if not (ROOT / path).exists():
                wrong.append(f"{name}: {path}")
    assert not wrong, wrong


def test_a_note_begins_with_its_title():
    """A formatter of code that is let loose on notes joins their lines."""
    notes = [name for name in tracked_files() if name.endswith(".md")]
    assert notes
    assert [name for name in notes if not (ROOT / name).read_text().startswith("# ")] == []


def test_no_leftovers():
    for name in tracked_files():
        path = ROOT / name
        assert not {"utils", "common", "misc"} & set(Path(name).parts), name
        if path.suffix in {".py", ".cc", ".h", ".cu", ".cuh", ".cmake", ".proto"} and not name.startswith(
            "tests/tidy/"
        ):
            text = path.read_text()
            assert not re.search(r"\b(TODO|FIXME|XXX)\b(?! ?\(?#\d)", text), f"{name}: a TODO needs an issue number"
            assert not re.search(r"\bstd::cout\b|\bprintf\(", text), name


def test_every_source_file_is_built():
    cmake = "\n".join(path.read_text() for path in ROOT.rglob("CMakeLists.txt") if "build" not in path.parts)
    cmake += "\n".join(path.read_text() for path in (ROOT / "cpp").rglob("*.cmake"))
    for name in tracked_files():
        if name.startswith(("cpp/", "python/bindings/")) and name.endswith(".cc"):
            assert Path(name).name in cmake or re.sub(r"_\w+$", "", Path(name).stem) in cmake, (
                f"{name} is built by nothing"
            )
