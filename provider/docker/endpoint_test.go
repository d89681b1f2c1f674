package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFindEndpoint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	id := func(name string) string {
		sum := sha256.Sum256([]byte(name))
		return hex.EncodeToString(sum[:])
	}
	meta := func(name, content string) {
		put(t, filepath.Join(dir, "contexts/meta", id(name), "meta.json"), content)
	}
	meta("far", `{"Name":"far","Endpoints":{"docker":{"Host":"tcp://far:2376"}}}`)
	meta("blind", `{"Endpoints":{"docker":{"Host":"tcp://far:2376","SkipTLSVerify":true}}}`)
	meta("shell", `{"Endpoints":{"docker":{"Host":"ssh://far"}}}`)
	meta("damaged", `{`)
	meta("empty", `{}`)
	ca := filepath.Join(dir, "contexts/tls", id("far"), "docker/ca.pem")
	put(t, ca, "x")
	chosen := t.TempDir()
	put(t, filepath.Join(chosen, "config.json"), `{"currentContext":"gone"}`)
	for name, tc := range map[string]struct {
		in   Surroundings
		want Endpoint
		code sandpit.Code
	}{
		"host":            {Surroundings{Host: "tcp://h:2375", Context: "far", ConfigDir: dir}, Endpoint{Host: "tcp://h:2375"}, ""},
		"host with TLS":   {Surroundings{Host: "tcp://h:2376", CertPath: "/c"}, Endpoint{"tcp://h:2376", "/c/ca.pem", "/c/cert.pem", "/c/key.pem"}, ""},
		"usual TLS files": {Surroundings{Host: "tcp://h:2376", ConfigDir: "/d", TLSVerify: true}, Endpoint{"tcp://h:2376", "/d/ca.pem", "/d/cert.pem", "/d/key.pem"}, ""},
		"ssh":             {Surroundings{Host: "ssh://h"}, Endpoint{Host: "ssh://h"}, sandpit.Unsupported},
		"no address":      {Surroundings{Host: "h"}, Endpoint{Host: "h"}, sandpit.Invalid},
		"context":         {Surroundings{Context: "far", ConfigDir: dir}, Endpoint{Host: "tcp://far:2376", CA: ca}, ""},
		"no such context": {Surroundings{Context: "none", ConfigDir: dir}, Endpoint{}, sandpit.NotFound},
		"chosen context":  {Surroundings{ConfigDir: chosen}, Endpoint{}, sandpit.NotFound},
		"unchecked":       {Surroundings{Context: "blind", ConfigDir: dir}, Endpoint{}, sandpit.Unsupported},
		"context by ssh":  {Surroundings{Context: "shell", ConfigDir: dir}, Endpoint{Host: "ssh://far"}, sandpit.Unsupported},
		"damaged":         {Surroundings{Context: "damaged", ConfigDir: dir}, Endpoint{}, sandpit.Invalid},
		"no engine":       {Surroundings{Context: "empty", ConfigDir: dir}, Endpoint{}, sandpit.Unsupported},
	} {
		got, err := FindEndpoint(tc.in)
		if sandpit.CodeOf(err) != tc.code {
			t.Errorf("%s: error %v, want the code %q", name, err, tc.code)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestNamedPipe refuses an engine of Windows, and says what, why and what to do, wherever
// it is named.
func TestNamedPipe(t *testing.T) {
	t.Parallel()
	const pipe = "npipe:////./pipe/docker_engine"
	dir := t.TempDir()
	sum := sha256.Sum256([]byte("desktop"))
	put(t, filepath.Join(dir, "contexts/meta", hex.EncodeToString(sum[:]), "meta.json"), `{"Endpoints":{"docker":{"Host":"`+pipe+`"}}}`)
	_, host := FindEndpoint(Surroundings{Host: pipe})
	_, named := FindEndpoint(Surroundings{Context: "desktop", ConfigDir: dir})
	_, made := New(withNumbers(Options{Endpoint: Endpoint{Host: pipe}, StateDir: t.TempDir()}))
	for where, err := range map[string]error{"DOCKER_HOST": host, "a context": named, "the options": made} {
		const want = "docker host npipe:////./pipe/docker_engine: named pipes work only on Windows"
		if sandpit.CodeOf(err) != sandpit.Unsupported || err.Error() != want {
			t.Errorf("%s: %v (%s), want %q", where, err, sandpit.CodeOf(err), want)
		}
		if hint := sandpit.HintOf(err); !strings.Contains(hint, "tcp://") || !strings.Contains(hint, "WSL") {
			t.Errorf("%s: the hint %q", where, hint)
		}
	}
}

// TestFindSocket finds sockets of engines that run without root.
func TestFindSocket(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(usualSocket); err == nil {
		t.Skip("this machine has an engine at the usual place")
	}
	dir, err := os.MkdirTemp("", "run") //nolint:usetesting // short, for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "podman/podman.sock")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	var config net.ListenConfig
	ln, err := config.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	got, err := FindEndpoint(Surroundings{RuntimeDir: dir})
	if err != nil || got.Host != "unix://"+path {
		t.Errorf("got %+v, %v", got, err)
	}
}

func FuzzHandle(f *testing.F) {
	f.Add([]byte(`{"id":"saaaaaaaaaaaaaaaaaaa","container":"0"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := decodeHandle(data)
		if err == nil && (h.ID.Validate() != nil || !containerPattern().MatchString(h.Container)) {
			t.Errorf("taken: %+v", h)
		}
	})
}
