package clouds_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// The programs of OpenManus's image, as far as its users notice: supervisord starts the desktop and
// the website.
const (
	supervisord = `#!/bin/sh
echo "$*" >> /srv/starts
httpd -p 127.0.0.1:6080 -h /srv/desktop
httpd -p 127.0.0.1:8080 -h /srv/website
exec sleep 100000
`
	supervisorctl = `#!/bin/sh
for port in 6080 8080; do
	if wget -q -O /dev/null http://127.0.0.1:$port/; then state="RUNNING   pid 7, uptime 0:00:01"; else state=STARTING; fi
	echo "port$port    $state"
done
`
)

// writeImage writes the root file system of an image with the services of OpenManus's image.
func writeImage(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		testengine.Skip(t, "there is no busybox; install busybox-static")
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for name, content := range map[string]string{
		"bin/busybox": string(busybox), "usr/bin/supervisord": supervisord, "usr/bin/supervisorctl": supervisorctl,
		"etc/supervisor/conf.d/supervisord.conf": "[supervisord]\n", "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n",
		"srv/desktop/index.html": "the desktop", "srv/website/index.html": "the website",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), path, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for applet := range strings.FieldsSeq(string(out)) {
		if applet == "busybox" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(root, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// writeConfiguration writes a configuration as users of OpenManus have it. Only the account is another one.
func writeConfiguration(t *testing.T, key, url string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "internal", "app", "config", "testdata", "openmanus.toml"))
	if err != nil {
		t.Fatal(err)
	}
	own := strings.NewReplacer(`daytona_api_key = "not-a-real-key"`, `daytona_api_key = "`+key+`"`, "https://daytona.example/api", url+"/api").Replace(string(text))
	if !strings.Contains(own, key) || !strings.Contains(own, url) {
		t.Fatal("the configuration has no account")
	}
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// fetch sends a request with a header, and returns the body of its response. Names below localhost are this machine.
func fetch(t *testing.T, url, header, value string) string {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
	}}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(header, value)
	res, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestOpenManus uses the configuration and the image of OpenManus, unchanged, with a cloud that has Daytona's API.
func TestOpenManus(t *testing.T) {
	t.Parallel()
	cloud := newHost(t)
	if out := cloud.With("SANDPIT_URL=").Output(t, "image", "import", writeImage(t), "--name", "whitezxj/sandbox:0.1.0"); !strings.Contains(out, "whitezxj/sandbox") {
		t.Errorf("import an image: %s", out)
	}
	key := cloud.newKey(t)
	h := newHostBy(t, []string{"sh", "-c", `exec "$@" --config ` + writeConfiguration(t, key, cloud.URL), "sh"}, "SANDBOX_PROVIDER=daytona")
	h.want(t, "", "create", "--name", "project", "--label", "id=project-7")
	const want = `CHROME_CDP=
CHROME_DEBUGGING_HOST=localhost
CHROME_DEBUGGING_PORT=9222
CHROME_PATH=
CHROME_PERSISTENT_SESSION=true
CHROME_USER_DATA=
RESOLUTION=1024x768x24
RESOLUTION_HEIGHT=768
RESOLUTION_WIDTH=1024
ANONYMIZED_TELEMETRY=false
VNC_PASSWORD=not-a-real-password
`
	h.want(t, want, "exec", "project", "--", "sh", "-c", `for v in CHROME_ RESOLUTION ANONYMIZED_ VNC_; do env | grep "^$v" | sort; done`)

	list := cloud.URL + "/api/sandbox?labels=%7B%22id%22%3A%22project-7%22%7D"
	text := fetch(t, list, "Authorization", "Bearer "+key)
	for _, part := range []string{
		`"state":"started"`, `"cpu":2`, `"memory":4`, `"disk":5`, `"public":false`, `"autoStopInterval":15`, `"autoArchiveInterval":1440`, `"autoDeleteInterval":43210`,
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the cloud has no %s: %s", part, text)
		}
	}
	seeServices(t, h, cloud, key, "1")
	h.want(t, "", "stop", "project")
	cloud.want(t, "stopped", "ls", "--all")
	h.want(t, "", "start", "project")
	seeServices(t, h, cloud, key, "2")
	h.want(t, "", "rm", "-f", "project")
	if text := fetch(t, list, "Authorization", "Bearer "+key); !strings.Contains(text, `"items":[]`) {
		t.Errorf("the cloud still has the sandbox: %s", text)
	}
}

// seeServices opens the desktop and the website, by the URLs of the server and by those of the cloud.
func seeServices(t *testing.T, h, cloud *host, key, starts string) {
	t.Helper()
	h.want(t, starts, "exec", "project", "--", "sh", "-c", "grep -c -- '-n -c /etc/supervisor/conf.d/supervisord.conf' /srv/starts")
	id := strings.TrimSpace(cloud.want(t, "", "ls", "-q"))
	for port, page := range map[string]string{"6080": "the desktop", "8080": "the website"} {
		url := strings.TrimSpace(h.want(t, "http", "url", "project", port))
		if got := fetch(t, url, "Accept", "*/*"); got != page {
			t.Errorf("port %s at the server: %q, want %q", port, got, page)
		}
		var link struct{ URL, Token string }
		if err := json.Unmarshal([]byte(fetch(t, cloud.URL+"/api/sandbox/"+id+"/ports/"+port+"/preview-url", "Authorization", "Bearer "+key)), &link); err != nil {
			t.Fatal(err)
		}
		if got := fetch(t, link.URL+"/", "x-daytona-preview-token", link.Token); got != page {
			t.Errorf("port %s at the cloud: %q, want %q", port, got, page)
		}
	}
}
