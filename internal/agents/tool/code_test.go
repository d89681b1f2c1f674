package tool_test

import (
	"bytes"
	"encoding/json"
	"image/png"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// needs skips the test where the machine's own programs, which are the sandbox's, lack one.
func needs(tb testing.TB, args ...string) {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		testengine.Skip(tb, "no %s: %v\n%s", args, err, out)
	}
}

// TestCode runs the tools for code in one sandbox.
func TestCode(t *testing.T) {
	t.Parallel()
	box := newBox(t)
	for name, f := range map[string]func(*testing.T, kit){
		"python": testPython, "plain python": testPlain, "images": testImages, "jupyter": testJupyter, "javascript": testJavaScript, "node": testNode, "pip": testPip,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name == "pip" {
				t.Skip("takes pip's time")
			}
			id := strings.ReplaceAll(name, " ", "-")
			f(t, newKit(t, box, tool.SessionOptions{ID: id, Dir: "/workspace/" + id}))
		})
	}
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		testSharedCode(t, box)
	})
}

// field returns a field of a result's data.
func field(tb testing.TB, r tool.Result, name string) any {
	tb.Helper()
	data, err := json.Marshal(r.Data)
	if err != nil {
		tb.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(data, &all); err != nil {
		tb.Fatalf("%s: %v", data, err)
	}
	return all[name]
}

func testPython(t *testing.T, k kit) {
	t.Helper()
	needs(t, "python3", "--version")
	k.want("python_exec", fields{"code": "x = 40"}, "(no output)")
	r := k.want("python_execute", fields{"code": "print('hello'); x + 2"}, "hello\n42")
	if r.Failed || field(t, r, "stdout") != "hello\n" || field(t, r, "execution_count") != 2.0 {
		t.Errorf("%+v", r)
	}
	if r := k.want("python_exec", fields{"code": "def f():\n    return 1 / 0\nf()"}, "[FAILED (ZeroDivisionError)]", "Traceback", "division by zero"); !r.Failed {
		t.Error("an exception is no failure")
	}
	k.want("python_exec", fields{"code": "def ("}, "[FAILED (SyntaxError)]")
	k.want("python_exec", fields{"code": "import os; os.getcwd(), open('file', 'w').write('x')"}, "/workspace/python")
	k.want("file_read", fields{"file": "file"}, "x")
	k.want("env_set", fields{"name": "LATE", "value": "it's\nlate"})
	k.want("env_set", fields{"name": "KEY", "value": "s3cret-value", "secret": true})
	k.want("python_exec", fields{"code": "os.environ['LATE']"}, `it's\nlate`)
	k.lacks(k.want("python_exec", fields{"code": "print(os.environ['KEY']); os.environ['KEY']"}, "***"), "s3cret")
	k.lacks(k.want("python_exec", fields{"code": "raise ValueError(os.environ['KEY'])"}, "***"), "s3cret")
	k.want("python_exec", fields{"code": "import time; print('begun'); time.sleep(60)", "timeout": 1}, "[FAILED (timeout; interrupted, the variables are kept)]", "begun")
	k.want("python_exec", fields{"code": "x"}, "40")
	r = k.want("python_exec", fields{"code": "for i in range(100000): print(i)"}, "0\n1\n", "99999", "bytes in total")
	if len(r.Text) > 31_000 || r.SavedTo == "" {
		t.Errorf("%d bytes, saved to %q", len(r.Text), r.SavedTo)
	}
	k.want("python_exec", fields{"code": "os._exit(3)"}, "[FAILED (KernelDied)]", "variables are lost")
	k.want("python_exec", fields{"code": "'x' in globals()"}, "False")
	k.refused("python_exec", fields{"code": "import os; os.kill(os.getppid(), 9); import time; time.sleep(60)"}, sandpit.Unavailable, "the interpreter has ended")
	k.want("python_exec", fields{"code": "y = 1"}, "(no output)")
	k.want("python_exec", fields{"code": "'y' in globals()", "reset": true}, "False")
	k.want("python_exec", fields{"code": "", "reset": true}, "All variables were reset")
	k.want("python_exec", fields{"code": "input()"}, "input is not supported here")
	k.refused("python_exec", fields{}, sandpit.Invalid, "code")
	k.refused("python_exec", fields{"code": "1", "timeout": -1}, sandpit.Invalid)
}

// testPlain has a Python without IPython, by a PATH of its own.
func testPlain(t *testing.T, k kit) {
	t.Helper()
	needs(t, "python3", "--version")
	k.want("file_write", fields{"file": "bin/python3", "content": "#!/bin/sh\nexec /usr/bin/python3 -S \"$@\"\n"})
	k.want("shell_exec", fields{"command": "chmod +x bin/python3"})
	k.want("env_set", fields{"name": "PATH", "value": "/workspace/plain-python/bin:/usr/bin:/bin"})
	k.want("python_exec", fields{"code": "import sys; 'IPython' in sys.modules"}, "False")
	k.want("python_exec", fields{"code": "x = 6"}, "(no output)")
	k.want("python_exec", fields{"code": "print('a'); x * 7"}, "a\n42")
	k.want("python_exec", fields{"code": "1/0"}, "[FAILED (ZeroDivisionError)]", "Traceback", "<cell 4>")
	k.want("python_exec", fields{"code": "while True: pass", "timeout": 1}, "[FAILED (timeout; interrupted, the variables are kept)]")
	k.want("python_exec", fields{"code": "x"}, "6")
}

// drawing is Python that shows pictures: valid ones and malformed ones.
const drawing = `
import base64, struct, zlib
def png(width, height):
    def chunk(kind, data): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) + \
        chunk(b"IDAT", zlib.compress((b"\0" + b"\0" * width) * height)) + chunk(b"IEND", b"")
class Picture:
    def __init__(self, data): self.data = data
    def __repr__(self): return "<picture>"
    def _repr_png_(self): return self.data
`

func testImages(t *testing.T, k kit) {
	t.Helper()
	needs(t, "python3", "--version")
	k.want("python_exec", fields{"code": drawing})
	r := k.want("python_exec", fields{"code": "Picture(png(3, 2))"}, "<picture>", "[image 1]")
	if len(r.Images) != 1 || r.Images[0].MIME != "image/png" {
		t.Fatalf("%+v", r)
	}
	if about, err := png.DecodeConfig(bytes.NewReader(r.Images[0].Data)); err != nil || about.Width != 3 || about.Height != 2 {
		t.Errorf("%+v, %v", about, err)
	}
	for code, want := range map[string]string{
		"Picture(b'<script>')":                "not a valid image/png",
		"Picture(png(8193, 1))":               "8193 × 1 pixels",
		"Picture(png(1, 1) + b'x' * (6<<20))": "left out: a result may have",
	} {
		if r := k.want("python_exec", fields{"code": code}, want); len(r.Images) != 0 {
			t.Errorf("%s: %d pictures", code, len(r.Images))
		}
	}
	r = k.want("python_exec", fields{"code": "for i in range(20): display(Picture(png(1, 1)))"}, "[image 8]", "the limit is 8")
	if len(r.Images) != 8 {
		t.Errorf("%d pictures", len(r.Images))
	}
	r = k.want("python_exec", fields{"code": "for i in range(70): display(i)"}, "\n69\n", "20 more results")
	if list, ok := field(t, r, "results").([]any); !ok || len(list) != 50 {
		t.Errorf("%d results", len(list))
	}
	r = k.want("python_exec", fields{"code": "for i in range(9): display('x' * 50_000)"}, "more results")
	if data, err := json.Marshal(r.Data); err != nil || len(data) > 200_000 {
		t.Errorf("%d bytes of data, %v", len(data), err)
	}
}

func testJupyter(t *testing.T, k kit) {
	t.Helper()
	needs(t, "python3", "--version")
	k.want("jupyter_execute", fields{"code": "x = 1"})
	k.want("jupyter_execute", fields{"code": "x = 2", "session_id": "other"})
	k.want("python_exec", fields{"code": "x"}, "1")
	r := k.want("jupyter_execute", fields{"code": "x", "session_id": "other", "kernel_name": "python3"}, "2")
	if field(t, r, "session_id") != "other" {
		t.Errorf("%+v", r.Data)
	}
	k.want("jupyter_execute", fields{"code": "echo $((6 * 7))", "kernel_name": "bash"}, "42")
	k.refused("jupyter_execute", fields{"code": "1", "kernel_name": "python3.9"}, sandpit.Unsupported, "another version of Python than 3.9")
	version := strings.TrimSpace(k.want("shell_exec", fields{"command": `python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])'`}).Text)
	k.want("jupyter_execute", fields{"code": "x", "kernel_name": "python" + strings.TrimPrefix(version, "[SUCCESS]\n")}, "1")
	k.refused("jupyter_execute", fields{"code": "1", "kernel_name": "cobol"}, sandpit.Invalid)
	k.refused("jupyter_execute", fields{"code": "1", "session_id": "../x"}, sandpit.Invalid)
	// An unused context ends, but never the main one.
	tool.SetKernelRest(k.session, time.Nanosecond)
	k.want("jupyter_execute", fields{"code": "x"}, "1")
	tool.SetKernelRest(k.session, time.Hour)
	k.want("jupyter_execute", fields{"code": "x", "session_id": "other"}, "NameError")
	k.want("jupyter_execute", fields{"code": "x"}, "1")
}

func testJavaScript(t *testing.T, k kit) {
	t.Helper()
	needs(t, "node", "--version")
	k.want("javascript_execute", fields{"code": "const x = `it's $HOME\n`; console.log('out')"}, "out\n")
	k.want("javascript_execute", fields{"code": "await Promise.resolve(x.length)"}, "11")
	k.want("code_execute", fields{"code": "typeof x", "language": "javascript"}, "string")
	k.want("javascript_execute", fields{"code": "throw new TypeError('bad')"}, "[FAILED (TypeError)]", "bad")
	k.want("javascript_execute", fields{"code": "for (;;) {}", "timeout": 1}, "[FAILED (timeout; interrupted")
	k.want("javascript_execute", fields{"code": "typeof x"}, "string")
	k.want("javascript_execute", fields{"code": "typeof x", "reset": true}, "undefined")
	k.want("code_execute", fields{"code": "X=5", "language": "bash"}, "(no output)")
	k.want("code_execute", fields{"code": "echo $X; exit 3", "language": "bash"}, "5\n", "KernelDied")
	k.want("code_execute", fields{"code": "console.log(process.argv.length)", "language": "nodejs"}, "[SUCCESS]\n2")
	k.refused("code_execute", fields{"code": "1", "language": "cobol"}, sandpit.Invalid)
	k.want("env_set", fields{"name": "PATH", "value": "/nothing"})
	k.refused("nodejs_execute", fields{"code": "1"}, sandpit.Unsupported, "no Node.js")
	k.refused("javascript_execute", fields{"code": "1", "reset": true}, sandpit.Unsupported, "this sandbox's image has no node")
}

func testNode(t *testing.T, k kit) {
	t.Helper()
	needs(t, "node", "--version")
	program := "const fs = require('fs'); console.log(fs.readFileSync(0, 'utf8') + require('./lib/a.js').b + fs.readFileSync('data.txt', 'utf8')); console.error(process.cwd())"
	k.want("nodejs_execute", fields{
		"code": program, "stdin": "in $HOME`id` ", "files": fields{"lib/a.js": "exports.b = 'lib '", "data.txt": "data"},
	}, "[SUCCESS]\nin $HOME`id` lib data\n", "/workspace/node/.tool-output/node-")
	k.want("nodejs_execute", fields{"code": "import os from 'node:os'\nconsole.log(os.EOL.length, process.cwd())"}, "1 /workspace/node")
	k.want("nodejs_execute", fields{"code": "console.log('a'); process.exit(3)"}, "[FAILED (exit 3)]\na")
	if r := k.want("nodejs_execute", fields{"code": "console.log('on'); setInterval(() => {}, 1000)", "timeout": 1}, "[FAILED (timeout", "on"); !r.Failed {
		t.Error("a timeout is no failure")
	}
	k.want("shell_exec", fields{"command": "ls -A .tool-output"}, "(no output)")
	for _, name := range []string{"../x", "/etc/x", "", "a/../../x", "program.cjs", "a//b", "."} {
		k.refused("nodejs_execute", fields{"code": "1", "files": fields{name: "x"}}, sandpit.Invalid)
	}
	k.refused("nodejs_execute", fields{"code": "1", "files": []string{"x"}}, sandpit.Invalid)
}

// packageIndex makes an index with one package of our own, and serves it.
const packageIndex = `
import base64, hashlib, http.server, os, zipfile
os.makedirs("index/simple/sandpit-probe", exist_ok=True)
for version in ("1.0", "1.1"):
    wheel = f"index/simple/sandpit-probe/sandpit_probe-{version}-py3-none-any.whl"
    files = {
        "sandpit_probe.py": f"version = '{version}'\n",
        f"sandpit_probe-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: sandpit-probe\nVersion: {version}\n",
        f"sandpit_probe-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"sandpit_probe-{version}.dist-info/RECORD"
    with zipfile.ZipFile(wheel, "w") as z:
        for name, text in files.items():
            z.writestr(name, text)
        z.writestr(record, "".join(f"{name},,\n" for name in [*files, record]))
http.server.ThreadingHTTPServer(("127.0.0.1", 8125), lambda *a: http.server.SimpleHTTPRequestHandler(*a, directory="index")).serve_forever()
`

func testPip(t *testing.T, k kit) {
	t.Helper()
	needs(t, "python3", "-m", "pip", "--version")
	k.want("file_write", fields{"file": "index.py", "content": packageIndex})
	k.want("shell_exec", fields{"command": "python3 index.py", "background": true})
	k.want("shell_exec", fields{"command": "for i in $(seq 100); do (echo > /dev/tcp/127.0.0.1/8125) 2>/dev/null && break; sleep 0.1; done"})
	k.want("python_exec", fields{"code": "import sandpit_probe"}, "[FAILED (ModuleNotFoundError)]")
	const index = "http://127.0.0.1:8125/simple"
	r := k.want("pip_install", fields{"packages": []string{"sandpit-probe<1.1"}, "index_url": index}, "Installed sandpit-probe 1.0")
	if list, ok := field(t, r, "installed").([]any); !ok || len(list) != 1 {
		t.Errorf("%+v", r.Data)
	}
	k.want("python_exec", fields{"code": "import sandpit_probe; sandpit_probe.version"}, "1.0")
	k.want("pip_install", fields{"packages": []string{"sandpit-probe"}, "index_url": index}, "Nothing to install")
	k.want("file_write", fields{"file": "some requirements.txt", "content": "sandpit-probe\n"})
	k.want("env_set", fields{"name": "PIP_INDEX_URL", "value": index})
	k.want("pip_install", fields{"requirements_file": "some requirements.txt", "upgrade": true}, "Installed sandpit-probe 1.1")
	k.refused("pip_install", fields{"packages": []string{"sandpit-none"}}, sandpit.NotFound)
	k.refused("pip_install", fields{"packages": []string{"a b c"}}, sandpit.Invalid)
	k.refused("pip_install", fields{"packages": []string{"x"}, "index_url": "http://127.0.0.1:1/simple"}, sandpit.Unavailable, "network policy")
	k.refused("pip_install", fields{"requirements_file": "none.txt"}, sandpit.NotFound)
	for _, name := range []string{"", "--index-url=http://evil", "-rx", "x\n--pre"} {
		k.refused("pip_install", fields{"packages": []string{name}}, sandpit.Invalid, "not the name of a package")
	}
	k.refused("pip_install", fields{}, sandpit.Invalid)
	k.refused("pip_install", fields{"packages": []string{"x"}, "index_url": "file:///etc"}, sandpit.Invalid)
	k.want("file_write", fields{"file": "bin/python3", "content": "#!/bin/sh\nexec /usr/bin/python3 -S \"$@\"\n"})
	k.want("shell_exec", fields{"command": "chmod +x bin/python3"})
	k.want("env_set", fields{"name": "PATH", "value": "/workspace/pip/bin:/usr/bin:/bin"})
	k.refused("pip_install", fields{"packages": []string{"x"}}, sandpit.Unsupported, "no pip")
}

// testSharedCode has two sessions, each a user of its own, and one that tries to speak to the other's interpreter.
func testSharedCode(t *testing.T, box sandpit.Instance) {
	t.Helper()
	needs(t, "python3", "--version")
	setup := newKit(t, box, tool.SessionOptions{ID: "setup-code"})
	setup.want("shell_exec", fields{"command": `for id in 20003 20004; do mkdir -p /sessions/$id && chown $id:$id /sessions/$id && chmod 700 /sessions/$id; done`}, "[SUCCESS]")
	a := newKit(t, box, tool.SessionOptions{ID: "code-a", Dir: "/sessions/20003", User: "20003:20003", Confine: true})
	b := newKit(t, box, tool.SessionOptions{ID: "code-b", Dir: "/sessions/20004", User: "20004:20004", Confine: true})
	a.want("python_exec", fields{"code": "secret = 'of a'; import os; os.getuid(), os.getcwd()"}, "(20003, '/sessions/20003')")
	b.want("python_exec", fields{"code": "'secret' in globals(), os.getuid() if 'os' in globals() else None"}, "(False, None)")
	const tries = `
import glob, os
done = []
for pid in [int(p) for p in os.listdir("/proc") if p.isdigit()]:
    try:
        if os.stat(f"/proc/{pid}").st_uid != 20003: continue
    except OSError: continue
    for way in (lambda: os.kill(pid, 0), lambda: open(f"/proc/{pid}/fd/0", "wb"), lambda: open(f"/proc/{pid}/fd/1", "wb"), lambda: open(f"/proc/{pid}/mem", "rb"), lambda: open(f"/proc/{pid}/environ", "rb").read()):
        try:
            way()
            done.append(pid)
        except OSError: pass
    done.append("seen")
set(done)`
	b.want("python_exec", fields{"code": tries}, "{'seen'}")
	a.want("python_exec", fields{"code": "secret"}, "of a")
}
