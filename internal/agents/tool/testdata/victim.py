"""A session's program with something of everything that others might want. It writes
what they would have to guess to told.json in its directory, and waits."""
import ctypes, fcntl, json, os, pty, socket, subprocess, sys, tempfile, time

home, secret = os.getcwd(), "the-owner's-secret"
libc = ctypes.CDLL(None, use_errno=True)


def write(path, text=secret):
    with open(path, "w") as f:
        f.write(text)


for name in ["data", "append", "moved", "removed", "changed", "linked", "locked"]:
    write(home + "/" + name)
os.mkdir("sub")
os.makedirs(".tool-output", exist_ok=True)
write(".tool-output/whole.txt")
# A file without a name, of which there is only a descriptor.
nameless = open(home + "/nameless", "w+")
nameless.write(secret)
nameless.flush()
os.unlink("nameless")
# What a program leaves where everybody can write, without a thought about modes.
public = tempfile.mkdtemp(dir="/tmp")
os.chmod(public, 0o711)
write("/tmp/owner-file")
write(tempfile.gettempdir() + "/scratch")
os.mkfifo("/tmp/owner-fifo", 0o666)
write("/dev/shm/owner-shm")
os.mkdir("/tmp/owner-dir")
sock = socket.socket(socket.AF_UNIX)
sock.bind("/tmp/owner-socket")
sock.listen(5)
inner = socket.socket(socket.AF_UNIX)
inner.bind("socket")
inner.listen(5)
# System V: modes as careful programs choose them.
IPC_CREAT = 0o1000
shm = libc.shmget(0x5A01, 4096, IPC_CREAT | 0o600)
libc.shmat.restype = ctypes.c_void_p
at = libc.shmat(shm, None, 0)
ctypes.memmove(at, secret.encode(), len(secret))
sem = libc.semget(0x5A02, 1, IPC_CREAT | 0o600)
msg = libc.msgget(0x5A03, IPC_CREAT | 0o600)
assert -1 not in (shm, sem, msg), "System V"
libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
libc.prctl(0x59616D61, 2**64 - 1, 0, 0, 0)  # whoever has the rights may trace it
main, terminal = pty.openpty()
told = {
    "pid": os.getpid(), "home": home, "fd": nameless.fileno(), "temp": tempfile.gettempdir(),
    "shm": shm, "sem": sem, "msg": msg, "tty": os.ttyname(terminal),
    "address": at, "size": len(secret), "session": os.getsid(0), "public": public,
}
write("told.new", json.dumps(told))
os.rename("told.new", "told.json")
held = open("locked")
while True:
    time.sleep(60)
