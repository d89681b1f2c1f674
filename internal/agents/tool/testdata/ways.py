"""Tries every way to get at another program that victim.py is, told about in the argument.
For each it says whether it worked."""
import ctypes, fcntl, json, os, signal, socket, stat, subprocess, sys

t = json.loads(sys.argv[1])
pid, home, secret = t["pid"], t["home"], "the-owner's-secret"
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
proc = "/proc/%d/" % pid
mine = os.environ["HOME"]


def read(path, binary=False):
    with open(path, "rb") as f:
        return secret.encode() in f.read()


def did(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return True


class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def vm_readv():
    buf = ctypes.create_string_buffer(t["size"])
    local, remote = iovec(ctypes.addressof(buf), t["size"]), iovec(t["address"], t["size"])
    return did(libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)) and buf.value.decode() == secret


def mem():
    with open(proc + "mem", "rb", 0) as f:
        f.seek(t["address"])
        return f.read(t["size"]).decode() == secret


def ptrace():
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    did(libc.ptrace(16, pid, None, None))
    os.waitpid(pid, 0x40000000)
    return did(libc.ptrace(17, pid, None, None))


def shm():
    at = libc.shmat(t["shm"], None, 0o10000)
    if at == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "refused")
    return ctypes.string_at(at, t["size"]).decode() == secret


def msg():
    class message(ctypes.Structure):
        _fields_ = [("type", ctypes.c_long), ("text", ctypes.c_char * 8)]

    m = message(1, b"hello")
    return did(libc.msgsnd(t["msg"], ctypes.byref(m), 8, 0o4000))


def sem():
    class op(ctypes.Structure):
        _fields_ = [("num", ctypes.c_ushort), ("op", ctypes.c_short), ("flags", ctypes.c_short)]

    o = op(0, 1, 0o4000)
    return did(libc.semop(t["sem"], ctypes.byref(o), 1))


def connect(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        s.connect(path)
        return True


def append(path):
    with open(path, "a") as f:
        f.write("x")
    return True


def move():
    with open(mine + "/bait", "w") as f:
        f.write("bait")
    os.rename(mine + "/bait", home + "/moved")
    return True


def symlink():
    link = mine + "/a-link"
    os.symlink(home + "/data", link)
    try:
        return read(link)
    finally:
        os.unlink(link)


def hardlink():
    link = mine + "/a-hard-link"
    os.link(home + "/linked", link)
    try:
        return read(link)
    finally:
        os.unlink(link)


def lock():
    with open(home + "/locked") as f:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True


def watch(path):
    fd = libc.inotify_init1(0o4000)
    try:
        return did(libc.inotify_add_watch(fd, path.encode(), 0x100))
    finally:
        os.close(fd)


def fifo(path):
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    return True


def tty():
    os.close(os.open(t["tty"], os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    return True


def limits():
    import resource

    return resource.prlimit(pid, resource.RLIMIT_CORE) is not None


def as_root_of_a_namespace():
    out = subprocess.run(["unshare", "-Ur", "cat", home + "/data"], capture_output=True)
    return secret.encode() in out.stdout


def do(result):
    return True


ways = {
    "list the directory": lambda: do(os.listdir(home)),
    "enter the directory": lambda: do(os.chdir(home)),
    "read a file": lambda: read(home + "/data"),
    "read a file through a symbolic link": symlink,
    "read a file through a hard link": hardlink,
    "read a kept output": lambda: read(home + "/.tool-output/whole.txt"),
    "read a temporary file": lambda: read(t["temp"] + "/scratch"),
    "write a file": lambda: append(home + "/append"),
    "make a file": lambda: append(home + "/new"),
    "put a file in another's place": move,
    "remove a file": lambda: do(os.unlink(home + "/removed")),
    "change a file's mode": lambda: do(os.chmod(home + "/changed", 0o777)),
    "open the directory for all": lambda: do(os.chmod(home, 0o755)) and do(os.chmod(home, 0o700)),
    "lock a file": lock,
    "watch the directory": lambda: watch(home + "/sub"),
    "read a file in /tmp": lambda: read("/tmp/owner-file"),
    "remove a file in /tmp": lambda: do(os.unlink("/tmp/owner-file")),
    "put a file into a directory in /tmp": lambda: append("/tmp/owner-dir/new"),
    "open a pipe in /tmp": lambda: fifo("/tmp/owner-fifo"),
    "connect to a socket in /tmp": lambda: connect("/tmp/owner-socket"),
    "connect to a socket in the directory": lambda: connect(home + "/socket"),
    "read shared memory by name": lambda: read("/dev/shm/owner-shm"),
    "read shared memory of System V": shm,
    "take a semaphore of System V": sem,
    "send a message of System V": msg,
    "remove shared memory of System V": lambda: did(libc.shmctl(t["shm"], 0, None)),
    "read the environment": lambda: read(proc + "environ"),
    "reach files by the working directory": lambda: read(proc + "cwd/data"),
    "reach files by the root": lambda: read(proc + "root" + home + "/data"),
    "read an open file": lambda: read(proc + "fd/%d" % t["fd"]),
    "list open files": lambda: do(os.listdir(proc + "fd")),
    "read the memory": mem,
    "read the memory by a call": vm_readv,
    "see the memory's layout": lambda: "-" in open(proc + "maps").read(),
    "trace": ptrace,
    "ask for the limits": limits,
    "change the priority": lambda: do(os.setpriority(os.PRIO_PROCESS, pid, 5)),
    "open the terminal": tty,
    "read as root of a user namespace": as_root_of_a_namespace,
    "signal": lambda: do(os.kill(pid, 0)),
    "signal the group": lambda: do(os.killpg(os.getpgid(pid), 0)),
    "signal by a descriptor": lambda: do(signal.pidfd_send_signal(os.pidfd_open(pid), 0)),
    "stop": lambda: do(os.kill(pid, signal.SIGSTOP)) and do(os.kill(pid, signal.SIGCONT)),
    "end": lambda: do(os.kill(pid, signal.SIGKILL)),
}
answer = {}
for name, way in ways.items():
    try:
        answer[name] = {"worked": bool(way()), "why": ""}
    except Exception as e:
        answer[name] = {"worked": False, "why": repr(e)}
print(json.dumps(answer))
