"""The permission mode "strict", tried from inside: a process gives its rights up and then wants them back.

Every attempt is made in a process of its own, in three of its threads: the first one, one that is older than seal(),
and one that is younger.
"""

import errno
import json
import platform
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from llmsrv.serve import landlock, seccomp
from llmsrv.weights.fetch import FetchError
from llmsrv.weights.fetch_apart import fetch_apart

SCRIPT = """
import json, os, socket, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from llmsrv.config import ServeConfig
from llmsrv.serve import landlock
from llmsrv.serve.permissions import confine, seal

folder, port, has_landlock = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"
if not has_landlock:
    def unavailable():
        raise landlock.Unavailable("it was taken out")
    landlock.landlock_version = unavailable
lines = []
config = ServeConfig(
    model=str(folder / "model"), packed_cache=str(folder / "kept"), trace_steps=str(folder / "steps.jsonl")
)
confine(config, lines.append)
listener = socket.create_server(("127.0.0.1", 0))

def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as made:
        made.connect(address)

def write(path, flags=os.O_WRONLY):
    os.close(os.open(path, flags, 0o600))

attempts = {
    "read the model": lambda: Path(folder / "model/config.json").read_text(),
    "read what the model links to": lambda: Path(folder / "model/linked").read_text(),
    "import a module": lambda: __import__("colorsys"),
    "look at itself": lambda: Path("/proc/self/statm").read_text(),
    "read a password file": lambda: Path("/etc/passwd").read_text(),
    "read beside the model": lambda: Path(folder / "secret").read_text(),
    "read another process": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "list a folder": lambda: os.listdir(folder),
    "write to the model": lambda: write(folder / "model/config.json", os.O_RDWR),
    "make a file beside the model": lambda: write(folder / "made", os.O_WRONLY | os.O_CREAT),
    "make a file in the folder that is written": lambda: write(folder / "kept/made", os.O_WRONLY | os.O_CREAT),
    "remove it": lambda: os.unlink(folder / "kept/made"),
    "write the trace": lambda: write(folder / "steps.jsonl", os.O_WRONLY | os.O_TRUNC),
    "rename the model": lambda: os.rename(folder / "model", folder / "moved"),
    "change a mode": lambda: os.chmod(folder / "secret", 0o777),
    "execute": lambda: subprocess.run(["/bin/true"], check=True),
    "connect": lambda: connect(socket.AF_INET, ("127.0.0.1", port)),
    "connect to a unix socket": lambda: connect(socket.AF_UNIX, str(folder / "socket")),
    "send a datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port)),
    "make a pair of datagram sockets": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "signal its parent": lambda: os.kill(os.getppid(), 0),
    "start a thread and wait for it": lambda: ThreadPoolExecutor(1).submit(int).result(),
    "make a pair of streams": lambda: socket.socketpair(),
}

def outcomes():
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            found[name] = "done"
        except PermissionError:
            found[name] = "refused"
        except OSError as error:
            found[name] = repr(error)
    return found

def states():
    for task in Path("/proc/self/task").iterdir():
        try:
            yield (task / "status").read_text()
        except OSError:  # A thread that has ended since it was listed: an executor's, when nobody holds it.
            continue

loading = ThreadPoolExecutor(1).submit(outcomes).result() if has_landlock else {}
older = ThreadPoolExecutor(1)
older.submit(int).result()
seal(config, lines.append)
younger = ThreadPoolExecutor(1)
sealed = [run() for run in (outcomes, older.submit(outcomes).result, lambda: younger.submit(outcomes).result())]
found = {"lines": lines, "loading": loading, "sealed": sealed, "states": list(states())}
print(json.dumps(found), flush=True)
print(listener.getsockname()[1], flush=True)
with listener.accept()[0] as connection:
    connection.sendall(connection.recv(100).upper())
"""

ALWAYS = {
    "read the model",
    "read what the model links to",
    "import a module",
    "look at itself",
    "start a thread and wait for it",
    "make a pair of streams",
}
ONLY_WHILE_LOADING = {
    "make a file in the folder that is written",
    "remove it",
    "write the trace",
    "change a mode",
    "connect to a unix socket",
    "send a datagram",
    "make a pair of datagram sockets",
}
# What only Landlock refuses: a filter of system calls sees no paths.
NEEDS_LANDLOCK = {
    "read a password file",
    "read beside the model",
    "read another process",
    "list a folder",
    "signal its parent",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "blob").write_text("weights")
    (tmp_path / "model/linked").symlink_to("../blob")
    (tmp_path / "secret").write_text("hush")
    return tmp_path


def tried(folder, *, has_landlock):
    """What the script found, after it has answered on a socket that it listened on before."""
    with socket.create_server(("127.0.0.1", 0)) as peer, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(folder / "socket"))
        unix.listen()
        command = [sys.executable, "-c", SCRIPT, str(folder), str(peer.getsockname()[1]), str(has_landlock)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            found, port = process.stdout.readline(), process.stdout.readline()
            assert port, process.stderr.read()
            with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as connection:
                connection.sendall(b"hello")
                assert connection.recv(100) == b"HELLO"
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.communicate()
    return json.loads(found)


def done(outcomes):
    assert set(outcomes.values()) <= {"done", "refused"}, outcomes
    return {name for name, outcome in outcomes.items() if outcome == "done"}


def version():
    try:
        return landlock.landlock_version()
    except landlock.Unavailable:
        return 0


@pytest.mark.skipif(version() < 6, reason="this kernel's Landlock knows less, or it has none")
def test_a_strict_process_has_the_model_and_little_else(folder):
    found = tried(folder, has_landlock=True)
    assert done(found["loading"]) == ALWAYS | ONLY_WHILE_LOADING
    for outcomes in found["sealed"]:
        assert done(outcomes) == ALWAYS
    assert re.fullmatch(r".* reads the model and the installation alone \(Landlock \d+\)", found["lines"][0])


def test_without_landlock_the_operator_is_told_and_the_rest_applies(folder):
    found = tried(folder, has_landlock=False)
    for outcomes in found["sealed"]:
        assert done(outcomes) == ALWAYS | NEEDS_LANDLOCK
    assert found["lines"] == [
        "permission_mode strict: this kernel has no Landlock (it was taken out): files can be read as before",
        "permission_mode strict: writes no file, executes nothing and connects nowhere from now on",
    ]


def test_every_thread_has_the_filter_and_can_gain_no_rights(folder):
    states = tried(folder, has_landlock=False)["states"]
    assert len(states) >= 3
    for state in states:
        assert re.search(r"^NoNewPrivs:\t1$", state, re.M)
        assert re.search(r"^Seccomp:\t2$", state, re.M)


def test_a_process_with_threads_is_not_confined():
    code = (
        "import threading; from llmsrv.config import ServeConfig; from llmsrv.serve.permissions import confine\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "confine(ServeConfig(model='/'), print)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.stderr.endswith("RuntimeError: a process with several threads cannot be confined\n")


@pytest.mark.parametrize(("header", "column"), [("asm/unistd_64.h", 0), ("asm-generic/unistd.h", 1)])
def test_system_calls_have_the_kernels_numbers(header, column):
    if column == 0 and platform.machine() != "x86_64":
        pytest.skip("these are the numbers of another machine")
    places = [Path("/usr/include"), *Path("/usr/include").glob("*-linux-gnu")]
    text = next(path.read_text() for each in places if (path := each / header).exists())  # the C library needs it
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    ours = seccomp._REFUSED | seccomp._REMOVING_FILES | seccomp._CARRIERS
    ours |= {name: numbers for name, (numbers, *_) in seccomp._BY_ARGUMENT.items()}
    for name, known in ours.items():
        if name in numbers or column == 1:
            assert known[column] == numbers.get(name) or name == "fchmodat2", name
    assert len(ours.keys() & numbers.keys()) > 40


def run_filter(instructions, *, number, arguments=(), audit=0xC000003E):
    """What the kernel's machine returns for a system call."""
    data = {0: number, 4: audit} | {16 + 8 * place: value for place, value in enumerate(arguments)}
    value, at = 0, 0
    while True:
        code, skip_if, skip_else, operand = instructions[at]
        at += 1
        if code == seccomp._RETURN:
            return operand
        if code == seccomp._LOAD:
            value = data[operand]
            continue
        holds = {
            seccomp._IF_EQUAL: value == operand,
            seccomp._IF_AT_LEAST: value >= operand,
            seccomp._IF_ANY_BIT: value & operand != 0,
        }[code]
        at += skip_if if holds else skip_else


def is_allowed(number, *arguments, **other):
    refused = {name: (numbers, errno.EPERM) for name, numbers in seccomp._REFUSED.items()}
    program = seccomp._filter(seccomp._ARCHITECTURES["x86_64"], refused, seccomp._BY_ARGUMENT)
    instructions = list(struct.iter_unpack("=HBBI", program))
    return run_filter(instructions, number=number, arguments=arguments, **other) == seccomp._ALLOW


def test_the_filter_refuses_what_it_should():
    openat, read_only, write_only, create = 257, 0o2000000, 0o1, 0o100
    assert is_allowed(0)
    assert is_allowed(openat, 0, 0, read_only)
    assert not is_allowed(openat, 0, 0, write_only)
    assert not is_allowed(openat, 0, 0, create)
    assert not is_allowed(59)
    assert not is_allowed(0, audit=0x40000003)  # 32-bit programs
    assert not is_allowed(0x40000000)  # x32


def test_another_process_fetches(smollm2_path, monkeypatch):
    assert fetch_apart(str(smollm2_path)) == smollm2_path
    with pytest.raises(FetchError, match="there is no such file or folder, and it is neither a hub id"):
        fetch_apart("nothing")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(FetchError, match="ended too early"):
        fetch_apart("nothing")
