"""The permission mode "strict": what a daemon gives up, and when.

confine() ──> listen, load ──> seal() ──> SERVING
one thread     many threads     all threads

Landlock holds for threads that are started later, so it comes first, and allows what loading needs: the model, the
installation, shared libraries and a few files of the system are read, and of the paths among the options those that
are read later (with their folders: a file that is replaced is another file) or written. A seccomp filter can be given
to all threads at once, so it comes last, and takes what only loading needs; but what could carry system calls past it,
as the ring of an event loop could, is refused from the start. Where the kernel has no Landlock, which files are read
is not limited, and the operator is told.
"""

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import llmsrv
from llmsrv.config import ServeConfig
from llmsrv.option import options_of
from llmsrv.serve import landlock, seccomp
from llmsrv.serve.landlock import Allowed
from llmsrv.serve.unix_socket import socket_path
from llmsrv.weights.fetch_apart import fetch_apart

Report = Callable[[str], None]

# What the C library, Python and the engine read of the system; nothing in it is anybody's.
_SYSTEM_FILES = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"),
    *("/etc/localtime", "/usr/share/zoneinfo", "/etc/ssl/openssl.cnf"),
    *("/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/gai.conf"),
    *("/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/proc/sys/net/core/somaxconn"),
    *("/proc/sys/vm/overcommit_memory", "/sys/fs/cgroup", "/sys/devices/system", "/sys/kernel/mm"),
    *("/dev/zero", "/dev/random", "/dev/urandom"),
)
# A folder of /proc is forgotten when nobody holds it, and what was allowed is forgotten with it.
_held: list[int] = []


def confine(config: ServeConfig, report: Report) -> ServeConfig:
    """Gives up all files but those that this daemon needs, execution and connections. Never to be had again.

    Returns the options to go on with: a model that has to be fetched is fetched first, by another process. Raises
    ValueError or OSError. REQUIRES: this process has one thread.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("a process with several threads cannot be confined")
    config = _with_local_models(config)
    seccomp.refuse_carriers()
    models = [path for each in config.apart().values() for path in _model_files(Path(each.model_source))]
    allowed = [Allowed(path) for path in [*models, *_installation()]]
    allowed += [Allowed(Path(each)) for each in _SYSTEM_FILES]
    allowed += [Allowed(Path("/dev/null"), landlock.WRITE), *_of_options(config)]
    _held.append(os.open("/proc/self", os.O_PATH | os.O_CLOEXEC))
    allowed.append(Allowed(Path("/proc/self")))
    try:
        version = landlock.restrict(allowed)
    except landlock.Unavailable as error:
        report(f"permission_mode strict: this kernel has no Landlock ({error}): files can be read as before")
    else:
        report(f"permission_mode strict: reads the model and the installation alone (Landlock {version})")
    return config


def seal(config: ServeConfig, report: Report) -> None:
    """Gives up, for all threads that there are, what only loading needed. Raises OSError when that cannot be."""
    seccomp.refuse_for_all_threads(may_remove_files=bool(_socket_folders(config)))
    report("permission_mode strict: writes no file, executes nothing and connects nowhere from now on")


def _with_local_models(config: ServeConfig) -> ServeConfig:
    """The same with the models' paths, and with the name that a single one would have had."""
    if not isinstance(config.model, str):
        return replace(config, model={name: str(_local(source)) for name, source in config.model.items()})
    path = _local(config.model)
    if path == Path(config.model).expanduser():
        return replace(config, model=str(path))
    return replace(config, model=str(path), served_model_name=config.served_model_name or config.model)


def _local(model: str) -> Path:
    """Where the model is. What has to be fetched is fetched by another process."""
    path = Path(model).expanduser()
    return path if path.exists() else fetch_apart(model)


def _model_files(model: Path) -> Iterator[Path]:
    """The file or folder, and what links in the folder lead to: a hub's cache keeps files elsewhere."""
    yield model
    if model.is_dir():
        yield from (each.resolve() for each in model.rglob("*") if each.is_symlink())


def _installation() -> Iterator[Path]:
    """Where Python finds modules, but not the folder that it was started in, and shared libraries."""
    yield Path(llmsrv.__file__).parent
    started_in = [] if getattr(sys.flags, "safe_path", False) else sys.path[:1]
    yield from (Path(each) for each in sys.path if each not in ["", *started_in])
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    yield from (Path(sysconfig.get_path(name)) for name in names)
    yield from (Path(prefix) / name for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64"))
    yield from (Path(each) for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each.startswith("/"))


def _of_options(config: ServeConfig) -> Iterator[Allowed]:
    """Paths among the options. What is written is made here: afterwards nothing could be made beside it."""
    for option in options_of(type(config)).values():
        value = getattr(config, option.name)
        if value is None or option.opens is None:
            continue
        path = Path(value).expanduser()
        if option.opens == "read":
            yield from (Allowed(each.parent) for each in (path, path.resolve()))
        elif option.opens == "folder":
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            yield Allowed(path, landlock.MAKE)
        else:
            path.touch()
            yield Allowed(path, landlock.WRITE)
    yield from (Allowed(folder, landlock.MAKE) for folder in _socket_folders(config))


def _socket_folders(config: ServeConfig) -> list[Path]:
    """Where Unix sockets are made, and removed in the end."""
    paths = (socket_path(each) for each in (config.host, config.http_host, config.admin_host))
    return [each.parent for each in paths if each is not None]
