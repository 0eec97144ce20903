"""The guard of an untrusted process: starts it, watches it and its children, and ends all of them.

Run as a script, ``python -I -S guard.py ORDER`` with the order as JSON: it needs only the standard library, starts in a
few hundredths of a second, and imports no module of the guarded process. Alternatively a copy of the fork server calls
it (:mod:`sdpalab.judge.sandbox.fork_server`), which has imported the modules of the guarded process, but no candidate.

An untrusted process is confined by Linux namespaces where the kernel allows them: it sees only its own processes (a
signal, ``/proc/PID/fd`` or ptrace reach no other process, and its remaining children end with the guard, in every
session), the files that its order lists, and a private folder in memory; it has no network. If the kernel refuses
namespaces to this process but not to bubblewrap, bubblewrap creates them. If the kernel refuses both, the guard adopts
orphans and kills remaining children, which a malicious process can escape. In all three cases a seccomp filter refuses
sockets and system calls that reach other processes. The first line of the report is the confinement: ``namespaces`` and
their kinds, or ``processes`` and the reason. The last lines are ``cpu``, the CPU seconds of the process, its children
and the guard, and the end of the process.

See user_namespaces(7), pid_namespaces(7), mount_namespaces(7), mount_setattr(2), pivot_root(2), prctl(2), seccomp(2),
capset(2), setrlimit(2), cgroups(7).
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

with contextlib.suppress(ImportError):  # not on Windows
    import resource

WATCH_MS = 100
"""Milliseconds between two checks of the guard's descendants, where no cgroup limits them."""

_USER = 0x10000000
"""CLONE_NEWUSER."""
_NAMESPACES = {"pid": 0x20000000, "mount": 0x00020000, "ipc": 0x08000000, "net": 0x40000000}
"""CLONE_NEWPID, CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWNET."""
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_CAPABILITIES_V3 = 0x20080522
_PDEATHSIG, _SECCOMP, _CAPBSET_DROP, _CHILD_SUBREAPER, _NO_NEW_PRIVS = 1, 22, 24, 36, 38
_SECCOMP_FILTER = 2

PRIVATE = "/dev/shm"
"""Path of the private folder in a confined process; ``/tmp`` and ``/var/tmp`` are the same folder."""
SAME_FOLDER = ("/tmp", "/var/tmp")
_CGROUPS = "/sys/fs/cgroup"
BOOT = "import sys; sys.path[:] = sys.argv[4:]; from importlib import import_module as load; "
BOOT += "load(sys.argv[1]).main(*map(int, sys.argv[2:4]))"
"""Python code that becomes the process; its arguments are ``MODULE NUMBER NUMBER PATH...``."""

Order = Mapping[str, Any]

_libc = ctypes.CDLL(None, use_errno=True)


def execute(order: Order) -> None:
    """Become a new Python that runs ``main`` of the order's module."""
    for fd in order["fds"]:
        os.set_inheritable(fd, True)
    command = _python(order)
    os.execv(command[0], command)


def _python(order: Order) -> list[str]:
    """The command that runs ``main`` of the order's module."""
    return [sys.executable, "-I", "-u", "-c", BOOT, order["module"], *map(str, order["fds"]), *order["path"]]


def main(order: Order, become: Callable[[Order], None] = execute) -> None:
    """Guard one process until it ends, exceeds a limit, or the judge closes the lifeline.

    Parameters
    ----------
    order : mapping
        ``module``, whose ``main`` is run, and the import ``path``; ``fds``, inherited for ``main``; ``lifeline`` and
        ``report``, the guard's own descriptors; ``untrusted``, whether the process is confined, with ``view``, the
        visible files, ``filter``, a seccomp program, and ``bubblewrap``, the command that creates namespaces where the
        kernel refuses them here (:mod:`sdpalab.judge.sandbox.confinement`); ``folder_bytes``, ``memory_bytes``,
        ``address_bytes`` (0: no limit), ``cpu_seconds``, ``processes``: the limits.
    become : callable
        Runs the guarded process after its limits are set; receives the order, must close the guard's own descriptors,
        and does not return.
    """
    for fd in (order["lifeline"], order["report"]):
        os.set_inheritable(fd, False)  # the guarded process must not inherit these
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # out of memory, the kernel kills these before the judge
    if not order["untrusted"]:
        _serve(order, become, "processes not untrusted")
        return
    with _cgroup(order) as limits:
        order = {**order, **limits}
        answers, answer = os.pipe()
        first = os.fork()
        if not first:
            _in_namespaces(order, become, answer)
        os.close(answer)
        entered, _, refusal = _read_all(answers).partition(" ")
        if entered != "entered":
            os.waitpid(first, 0)
            _serve_outside(order, become, refusal or "no answer")
            return
        for fd in (*order["fds"], order["lifeline"], order["report"]):
            os.close(fd)
        os.waitpid(first, 0)


def _in_namespaces(order: Order, become: Callable[[Order], None], answer: int) -> NoReturn:
    """Create namespaces and serve in them, in a child of the guard; or report the kernel's refusal."""
    try:
        _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        entered, refusal = _enter_namespaces()
        if not entered:
            os.write(answer, f"refused {refusal}".encode())
        elif second := os.fork():
            for fd in (*order["fds"], order["lifeline"], order["report"], answer):
                os.close(fd)
            os.waitpid(second, 0)
        else:
            # First process of the new process namespace: when it ends, the kernel ends all others.
            _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            refusal = _shield_files(order)
            os.write(answer, (f"refused {refusal}" if refusal else "entered").encode())
            os.close(answer)
            if not refusal:
                _drop_capabilities()
                _serve(order, become, f"namespaces {entered}", PRIVATE)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _read_all(fd: int) -> str:
    with open(fd, "rb") as file:
        return file.read().decode()


def _serve_outside(order: Order, become: Callable[[Order], None], refusal: str) -> None:
    """Run a process in the namespaces of bubblewrap, or without any, if this process cannot create them."""
    _libc.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    import subprocess

    command = order["bubblewrap"]
    probe = [*command, "--", sys.executable, "-I", "-S", "-c", ""]
    if command and not subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True).returncode:
        _serve(order, _execute_in_bubblewrap, "namespaces bubblewrap", PRIVATE)
    else:
        _serve(order, become, f"processes {refusal}", _own_folder())


def _execute_in_bubblewrap(order: Order) -> None:
    """Become a new Python in the namespaces of bubblewrap, which also installs the filter."""
    readable, writable = os.pipe()
    os.write(writable, bytes.fromhex(order["filter"]))
    os.close(writable)
    for fd in (readable, *order["fds"]):
        os.set_inheritable(fd, True)
    seccomp = ["--seccomp", str(readable)] if order["filter"] else []
    command = [*order["bubblewrap"], *seccomp, "--", *_python(order)]
    os.execv(command[0], command)


def _serve(order: Order, become: Callable[[Order], None], confinement: str, folder: str = "") -> None:
    """Run the process, in its private folder if there is one, and report how it ended."""
    report = order["report"]
    os.write(report, f"{confinement}\n".encode())
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    child = os.fork()
    if not child:
        _limit_itself(order, folder, become)
    for fd in order["fds"]:
        os.close(fd)
    poller = select.poll()
    for fd in (order["lifeline"], ended):
        poller.register(fd, select.POLLIN)
    polls = order["untrusted"] and "cgroup" not in order
    last = ""
    while not last:
        ready = {fd for fd, _ in poller.poll(WATCH_MS if polls else None)}
        if order["lifeline"] in ready:
            break
        if ended in ready:
            os.read(ended, 4096)
        last = _reap(child) or (_excess(order) if polls else "")
    if "cgroup" in order and b"oom_kill 0\n" not in os.pread(order["oom"], 4096, 0):
        last = f"limit it held more memory than the {order['memory_bytes'] / 2**30:.1f} GiB that are allowed"
    if os.getpid() == 1:
        _end_namespace()
    else:
        _end_all()
    if folder not in ("", PRIVATE):
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    os.write(report, f"cpu {sum(each.ru_utime + each.ru_stime for each in used):.3f}\n{last}\n".encode())


def _limit_itself(order: Order, folder: str, become: Callable[[Order], None]) -> None:
    """Set limits in the child, which it cannot raise, and become the guarded process."""
    try:
        _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if "cgroup" in order:
            os.write(order["cgroup"], b"0")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if order["address_bytes"]:
            _limit(resource.RLIMIT_AS, order["address_bytes"])
        _limit(resource.RLIMIT_CPU, order["cpu_seconds"], grace=5)  # SIGXCPU, then SIGKILL if SIGXCPU is ignored
        if folder:
            _limit(resource.RLIMIT_FSIZE, order["folder_bytes"])
            for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
                os.environ[name] = folder
            if not order["writes"]:
                os.environ["WARPSAN_CACHE_DIR"] = folder
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if order["untrusted"] and become is not _execute_in_bubblewrap:
            if folder == PRIVATE:
                # A limit of the user namespace, whose other processes are guards; threads count.
                _limit(resource.RLIMIT_NPROC, order["processes"] + 4 * (os.cpu_count() or 1))
                _give_up_capabilities()
            if order["filter"]:
                _filter_calls(bytes.fromhex(order["filter"]))
        become(order)
    finally:
        os._exit(127)


def _limit(kind: int, most: int, grace: int = 0) -> None:
    """Lower a limit; a lower limit stays."""
    _, hard = resource.getrlimit(kind)
    highest = most + grace if hard == resource.RLIM_INFINITY else min(most + grace, hard)
    resource.setrlimit(kind, (min(most, highest), highest))


@contextlib.contextmanager
def _cgroup(order: Order, root: str = _CGROUPS, membership: str = "/proc/self/cgroup") -> Iterator[dict[str, int]]:
    """A cgroup (version 2) with the order's limits beside that of this process, if this process may create one.

    Yields descriptors: ``cgroup``, to which a process writes 0 to join, and ``oom``, which counts out-of-memory events;
    or an empty mapping. The cgroup is removed at the end.
    """
    path, descriptors = "", {}
    with contextlib.suppress(OSError, StopIteration):
        with open(membership) as file:
            own = next(line.strip()[3:] for line in file if line.startswith("0::"))
        parent = root + os.path.dirname(own.rstrip("/"))
        with open(f"{parent}/cgroup.subtree_control") as file:
            granted = {"memory", "pids"} <= set(file.read().split())
        if granted:
            path = f"{parent}/sdpalab-{os.getpid()}"
            os.mkdir(path)
            limits = {"memory.max": order["memory_bytes"], "pids.max": order["processes"], "memory.oom.group": 1}
            for name, value in limits.items():
                with open(f"{path}/{name}", "w") as file:
                    file.write(str(value))
            with contextlib.suppress(OSError), open(f"{path}/memory.swap.max", "w") as file:  # not on every kernel
                file.write("0")
            join = os.open(f"{path}/cgroup.procs", os.O_WRONLY)
            descriptors = {"cgroup": join, "oom": os.open(f"{path}/memory.events", os.O_RDONLY)}
    try:
        yield descriptors
    finally:
        for fd in descriptors.values():
            os.close(fd)
        if path:
            with contextlib.suppress(OSError):
                os.rmdir(path)


def _reap(child: int) -> str:
    """Collect ended processes; return the end of ``child``, such as ``exit 3`` or ``signal 11``, once it has ended."""
    outcome = ""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                outcome = f"exit {code}" if code >= 0 else f"signal {-code}"
    return outcome


def _excess(order: Order) -> str:
    """The exceeded limit on all processes together: ``limit`` and a clause; empty if none is exceeded."""
    pages = [_resident_pages(pid) for pid in descendants()]
    if len(pages) > order["processes"]:
        return f"limit it had {len(pages)} processes, and at most {order['processes']} are allowed"
    held = sum(pages) * resource.getpagesize()
    if held > order["memory_bytes"]:
        return f"limit it held {held / 2**30:.1f} GiB, and at most {order['memory_bytes'] / 2**30:.1f} are allowed"
    return ""


def _resident_pages(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1])
    except OSError:
        return 0


def descendants() -> Iterator[int]:
    """Process numbers of all running descendants of this process, from ``/proc``."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    children.setdefault(int(parent), []).append(int(name))
    waiting = children.get(int(os.readlink("/proc/self")), [])
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        yield pid


def _end_namespace() -> None:
    """Kill and collect all other processes of the namespace, of which this process is the first."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _end_all() -> None:
    """Kill until no process is left; an orphan of a killed process becomes a child of this process."""
    while alive := list(descendants()):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap(0)


def _own_folder() -> str:
    """A new folder that is removed after the end of the process."""
    folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"sdpalab-worker-{os.getpid()}-{os.urandom(4).hex()}")
    os.mkdir(folder, 0o700)
    return folder


def _enter_namespaces() -> tuple[str, str]:
    """Move this process and its future children into new namespaces.

    Returns their kinds and an empty text, or no kinds and the kernel's refusal. A user other than root needs a user
    namespace to create the others; root does not, and many containers refuse only the user namespace.
    """
    uid, gid = os.getuid(), os.getgid()
    flags = sum(_NAMESPACES.values())
    kinds = ",".join(_NAMESPACES)
    try:
        _call("unshare", _USER | flags)
    except OSError as error:
        if uid:
            return "", str(error.strerror)
        try:
            _call("unshare", flags)
        except OSError as other:
            return "", f"{error.strerror}; as root without a user namespace, {other.strerror}"
        return kinds, ""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return f"user,{kinds}", ""


def _shield_files(order: Order) -> str:
    """Replace the root by the files of the order's view and a new folder in memory; returns the kernel's refusal, if
    any.

    The new root is mounted on ``/proc``, which exists on every Linux and has no file of the view.
    """
    root, folder, view = "/proc", os.getcwd(), order["view"]
    try:
        _mount(None, "/", _MS_REC | _MS_PRIVATE)
        _mount("tmpfs", root, _MS_NOSUID, "size=4m,mode=755")
        for place in (PRIVATE, *SAME_FOLDER, "/proc", folder):
            os.makedirs(root + place, exist_ok=True)
        _mount("tmpfs", root + PRIVATE, _MS_NOSUID, f"size={order['folder_bytes']},mode=700")
        for place in SAME_FOLDER:
            _mount(root + PRIVATE, root + place, _MS_BIND)
        for kind, source, target in view:
            _show(kind, source, root + target)
        os.makedirs(root + folder, exist_ok=True)
        with contextlib.suppress(OSError):  # refused in a container that masks parts of /proc
            _mount("proc", f"{root}/proc", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        os.chdir(root)
        _call("syscall", _PIVOT_ROOT[os.uname().machine], b".", b".")  # the old root is now on top of the new one
        _call("umount2", b".", _MNT_DETACH)
        os.chdir(folder)
        _set_attributes("/", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, _AT_RECURSIVE)
        for place in (PRIVATE, *SAME_FOLDER, *(target for kind, _, target in view if kind == "write")):
            _set_attributes(place, 0, _ATTR_RDONLY)
        for place in (target for kind, _, target in view if kind == "device"):
            _set_attributes(place, 0, _ATTR_NODEV)
    except (OSError, KeyError) as error:
        return str(error.strerror) if isinstance(error, OSError) else f"{error.args[0]} is no known machine"
    return ""


def _show(kind: str, source: str, target: str) -> None:
    """Mount one entry of a view at its path, or create it as a ``link``."""
    if os.path.lexists(target) and (kind == "link" or os.path.ismount(target)):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if kind == "link":
        os.symlink(source, target)
        return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    _mount(source, target, _MS_BIND | _MS_REC)


def _mount(kind: str | None, target: str, flags: int, data: str | None = None) -> None:
    source = kind.encode() if kind else None
    _call("mount", source, target.encode(), source, ctypes.c_ulong(flags), data.encode() if data else None)


def _set_attributes(path: str, on: int, off: int, recursive: int = 0) -> None:
    attributes = (ctypes.c_uint64 * 4)(on, off, 0, 0)
    _call("syscall", _MOUNT_SETATTR, _AT_FDCWD, path.encode(), recursive, attributes, ctypes.c_size_t(32))


def _drop_capabilities() -> None:
    """Remove the capabilities of programs that are executed later: no mount, no trace of the guard."""
    for capability in range(64):
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)


def _give_up_capabilities() -> None:
    """Drop the capabilities of this process, which executes no program if it is a copy. The guard keeps its own: a
    process with fewer capabilities cannot trace it."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()
    _call("capset", header, none)


def _filter_calls(program: bytes) -> None:
    """Install a seccomp program that checks each system call of this process and its children."""

    class SeccompProgram(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    prepared = SeccompProgram(len(program) // 8, program)
    _call("prctl", _SECCOMP, _SECCOMP_FILTER, ctypes.byref(prepared), 0, 0)


def _call(name: str, *arguments: Any) -> None:
    function: Callable[..., int] = getattr(_libc, name)
    if function(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
