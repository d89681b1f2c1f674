package cli_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// TestPythonImage runs python from an image of two layers that comes from a
// registry, which stands for Docker's own.
func TestPythonImage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	registry := startRegistry(t)
	digest := registry.push(t, "library/python", "3.12-slim", pythonLayers(t), map[string]any{
		"Env": []string{"PATH=/usr/bin:/bin", "GREETING=hello", "LANG=C.UTF-8"}, "WorkingDir": "/srv/app", "User": "app",
		"Entrypoint": []string{"/usr/bin/python3", "-c"}, "Cmd": []string{"import os; print('from the image', os.getcwd())"},
	})
	run := func(args ...string) string {
		t.Helper()
		cmd := w.command(args...)
		cmd.Env = append(cmd.Env, "SANDPIT_IMAGE_MIRRORS=docker.io="+registry.addr)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("sandpit %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	const image = "python:3.12-slim"
	show := "import os; print(os.environ['GREETING'], os.getcwd(), os.getuid(), os.getgid())"
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{image, "--", "python3", "-c", "print(42)"}, "42\n"},
		{[]string{image}, "from the image /srv/app\n"},
		{[]string{image, "--", "python3", "-c", show}, "hello /srv/app 1000 1000\n"},
		{[]string{"-e", "GREETING=hi", "-w", "/tmp", "-u", "root", image, "--", "python3", "-c", show}, "hi /tmp 0 0\n"},
		{[]string{image, "--", "sh", "-c", "cat /etc/issue; ls /gone 2>/dev/null || true"}, "made by hand\n"},
	} {
		if got := run(append([]string{"run"}, tc.args...)...); got != tc.want {
			t.Errorf("%q prints %q, want %q", tc.args, got, tc.want)
		}
	}
	script := filepath.Join(t.TempDir(), "where.py")
	if err := os.WriteFile(script, []byte("import os, sys; print(os.getcwd(), sys.argv[1])"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := run("run", "--image", image, script, "x"); got != "/srv/app x\n" {
		t.Errorf("a script prints %q", got)
	}
	if got := run("image", "update"); !strings.Contains(got, "up to date") || !strings.Contains(got, digest[7:19]) {
		t.Errorf("update: %s", got)
	}
	var list []struct{ Name, Digest string }
	if err := json.Unmarshal([]byte(run("image", "ls", "--json")), &list); err != nil || len(list) != 1 || list[0].Name != image || list[0].Digest != digest {
		t.Errorf("listed %+v, %v", list, err)
	}
}

// pythonLayers are a layer of small programs and one of this machine's python.
func pythonLayers(t *testing.T) [][]byte {
	t.Helper()
	const makeLayers = `set -e
mkdir -p one/bin one/etc one/tmp two/usr/lib
cp "$(command -v busybox)" one/bin/busybox
for a in sh ls cat; do ln -s busybox one/bin/$a; done
printf 'root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n' > one/etc/passwd
echo made by hand > one/etc/issue; touch one/gone two/.wh.gone
real=$(readlink -f /usr/bin/python3)
cd two
mkdir -p usr/bin
cp -a /usr/bin/python3 "$real" usr/bin/
cp -a --parents /usr/lib/"$(basename "$real")" .
rm -rf usr/lib/*/test # the interpreter's own tests are the larger part
ldd "$real" | grep -o '/[^ ]*' | while read -r lib; do mkdir -p ".$(dirname "$lib")"; cp -L "$lib" ".$lib"; done
cd ..
tar --owner=0 --group=0 -C one -cf one.tar .
tar --owner=0 --group=0 -C two -czf two.tar .`
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		testengine.Skip(t, "no /usr/bin/python3 on this machine")
	}
	if _, err := exec.LookPath("busybox"); err != nil {
		testengine.Skip(t, "no busybox on this machine")
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", makeLayers)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make layers: %v\n%s", err, out)
	}
	return [][]byte{readFile(t, filepath.Join(dir, "one.tar")), readFile(t, filepath.Join(dir, "two.tar"))}
}

// registryServer is Docker's registry program.
type registryServer struct{ addr string }

func startRegistry(t *testing.T) registryServer {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		testengine.Skip(t, "no docker-registry on this machine")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // only to find a free port
	if err != nil {
		t.Fatal(err)
	}
	r := registryServer{addr: l.Addr().String()}
	_ = l.Close() // nothing was accepted
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	text := "version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: " + dir + "}}\nhttp: {addr: " + r.addr + "}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "serve", config)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // it is killed
	for range 500 {
		if conn, err := net.Dial("tcp", r.addr); err == nil { //nolint:noctx // at once or not at all
			_ = conn.Close() // nothing was written
			return r
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("the registry does not start")
	return r
}

// push puts an image into the registry and returns its digest.
func (r registryServer) push(t *testing.T, repo, tag string, layers [][]byte, config map[string]any) string {
	t.Helper()
	blob := func(mediaType string, data []byte) map[string]any {
		at, err := url.Parse(r.send(t, http.MethodPost, "/v2/"+repo+"/blobs/uploads/", "", nil))
		if err != nil {
			t.Fatal(err)
		}
		query := at.Query()
		digest := fmt.Sprintf("sha256:%x", sha256.Sum256(data))
		query.Set("digest", digest)
		r.send(t, http.MethodPut, at.Path+"?"+query.Encode(), "application/octet-stream", data)
		return map[string]any{"mediaType": mediaType, "digest": digest, "size": len(data)}
	}
	const base = "application/vnd.oci.image."
	described := []any{}
	for _, l := range layers {
		described = append(described, blob(base+"layer.v1.tar", l))
	}
	manifest := map[string]any{
		"schemaVersion": 2, "mediaType": base + "manifest.v1+json", "layers": described,
		"config": blob(base+"config.v1+json", asJSON(t, map[string]any{"os": "linux", "architecture": runtime.GOARCH, "config": config})),
	}
	data := asJSON(t, manifest)
	r.send(t, http.MethodPut, "/v2/"+repo+"/manifests/"+tag, base+"manifest.v1+json", data)
	return fmt.Sprintf("sha256:%x", sha256.Sum256(data))
}

func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (r registryServer) send(t *testing.T, method, path, mediaType string, data []byte) (location string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.addr+path, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", mediaType)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %s %s", method, path, resp.Status, body)
	}
	return resp.Header.Get("Location")
}
