package docker_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// core does with one engine what a provider is for, once each, and returns what is left
// to look at. TestConformance has all of it with the usual engine.
func core(t *testing.T, o docker.Options) *docker.Instance {
	t.Helper()
	p := open(t, o)
	ctx := within(t)
	if err := p.CreateVolume(ctx, "core"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
		defer cancel()
		if err := p.RemoveVolume(ctx, "core"); err != nil {
			t.Errorf("remove the volume: %v", err)
		}
	})
	spec := sandpit.Spec{Image: rootArchive(t), Mounts: []sandpit.Mount{{Volume: "core", Target: "/shared"}}}
	box := create(t, p, spec)
	if got := shell(t, box, "echo $((6*7)); cat /proc/self/status | grep -c NoNewPrivs:.1; id -u"); got != "42\n1\n0\n" {
		t.Errorf("a script prints %q", got)
	}
	if _, code := run(t, box, "sh", "-c", "exit 7"); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
	content := strings.Repeat("0123456789abcdef", 1<<16) // a megabyte
	if err := box.Guest().WriteFile(ctx, "", "/data/in", strings.NewReader(content), sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	var back bytes.Buffer
	reader, err := box.Guest().Start(ctx, sandpit.Command{Args: []string{"cat", "/data/in"}, Stdout: &back})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Wait(ctx); err != nil || back.String() != content {
		t.Errorf("%d bytes came back, %v", back.Len(), err)
	}
	shell(t, box, "echo shared > /shared/f")
	wantHello(t, box)

	other := create(t, p, spec)
	if got := shell(t, other, "cat /shared/f"); got != "shared\n" {
		t.Errorf("the other sandbox sees %q", got)
	}
	wantCode(t, p.RemoveVolume(ctx, "core"), sandpit.Conflict)
	if err := other.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if err := box.Stop(ctx); err != nil {
		t.Fatalf("stop: %v", err)
	}
	if err := box.Start(ctx); err != nil {
		t.Fatalf("start: %v", err)
	}
	if got := shell(t, box, "wc -c < /data/in; cat /shared/f"); got != "1048576\nshared\n" {
		t.Errorf("after stop and start: %q", got)
	}
	list, err := p.List(ctx)
	if err != nil || len(list) != 1 || list[0].ID != box.ID() {
		t.Errorf("list: %+v, %v", list, err)
	}
	attached, err := p.Attach(ctx, box.Handle())
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, attached, "echo again"); got != "again\n" {
		t.Errorf("attached: %q", got)
	}
	_, err = p.Create(ctx, box.ID(), spec)
	wantCode(t, err, sandpit.AlreadyExists)
	return box
}

// rootArchive is an image that needs no registry.
func rootArchive(t *testing.T) sandpit.Image {
	t.Helper()
	file := filepath.Join(t.TempDir(), "root.tar")
	if err := os.WriteFile(file, testdocker.Tar(t, testdocker.BusyboxFiles(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	return sandpit.Image(file)
}

// wantHello asks a web server inside, by HTTP and by a connection.
func wantHello(t *testing.T, box *docker.Instance) {
	t.Helper()
	const port = 8080
	shell(t, box, "mkdir -p /www && echo hello > /www/index.html")
	server, err := box.Guest().Start(within(t), sandpit.Command{Args: []string{"httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/www"}})
	if err != nil {
		t.Fatal(err)
	}
	get := func(do func() (*http.Response, error)) (string, error) {
		res, err := do()
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return fmt.Sprint(res.StatusCode, " ", string(text)), err
	}
	r, err := http.NewRequestWithContext(within(t), http.MethodGet, "http://sandbox/index.html", nil)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]func() (*http.Response, error){
		"http": func() (*http.Response, error) { return box.HTTP(port).RoundTrip(r) },
		"dial": func() (*http.Response, error) {
			conn, err := box.Dial(within(t), port)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = conn.Close() })
			transport := &http.Transport{DisableKeepAlives: true, Dial: func(string, string) (net.Conn, error) { return conn, nil }} //nolint:staticcheck // it is there already
			return transport.RoundTrip(r)
		},
	}
	for name, do := range by {
		var got string
		for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if got, err = get(do); err == nil || sandpit.CodeOf(err) != sandpit.Unavailable {
				break // else it does not listen yet
			}
		}
		if err != nil || got != "200 hello\n" {
			t.Errorf("by %s: %q, %v", name, got, err)
		}
	}
	if err := server.Signal(within(t), sandpit.SIGKILL); err != nil {
		t.Error(err)
	}
	if _, err := server.Wait(within(t)); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		conn, dialErr := box.Dial(within(t), port)
		if err = dialErr; err != nil {
			break
		}
		_ = conn.Close()
	}
	wantCode(t, err, sandpit.Unavailable)
}

// TestLivePorts reaches programs that listen inside.
func TestLivePorts(t *testing.T) {
	t.Parallel()
	wantHello(t, create(t, open(t, options(t)), sandpit.Spec{Image: busybox}))
}

// engineOptions are for an engine of the test's own.
func engineOptions(t *testing.T, e docker.Endpoint) docker.Options {
	t.Helper()
	return testoptions.Docker(docker.Options{
		Endpoint: e, StateDir: t.TempDir(), Guest: testdocker.Guest(t), Notice: func(text string) { t.Logf("notice: %s", text) },
	})
}

// TestTLS uses an engine that wants certificates, named as Docker's own command line
// finds it: by a context, and by variables.
func TestTLS(t *testing.T) {
	t.Parallel()
	testdocker.Host(t) // skips without an engine
	certs := t.TempDir()
	writeCertificates(t, certs)
	address := testdocker.StartTCP(t, "--tlsverify",
		"--tlscacert="+filepath.Join(certs, "ca.pem"), "--tlscert="+filepath.Join(certs, "server.pem"), "--tlskey="+filepath.Join(certs, "server-key.pem"))

	config := t.TempDir()
	sum := sha256.Sum256([]byte("far"))
	id := hex.EncodeToString(sum[:])
	store(t, filepath.Join(config, "config.json"), `{"currentContext":"far"}`)
	store(t, filepath.Join(config, "contexts/meta", id, "meta.json"), `{"Name":"far","Endpoints":{"docker":{"Host":"tcp://`+address+`"}}}`)
	for _, name := range []string{"ca.pem", "cert.pem", "key.pem"} {
		text, err := os.ReadFile(filepath.Join(certs, name))
		if err != nil {
			t.Fatal(err)
		}
		store(t, filepath.Join(config, "contexts/tls", id, "docker", name), string(text))
	}
	byContext, err := docker.FindEndpoint(docker.Surroundings{ConfigDir: config})
	if err != nil {
		t.Fatal(err)
	}
	core(t, engineOptions(t, byContext))

	byVariables, err := docker.FindEndpoint(docker.Surroundings{Host: "tcp://" + address, CertPath: certs, TLSVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	if list, err := open(t, engineOptions(t, byVariables)).List(within(t)); err != nil || len(list) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
	strangers := t.TempDir()
	writeCertificates(t, strangers) // of another authority
	for name, e := range map[string]docker.Endpoint{
		"no encryption":       {Host: "tcp://" + address},
		"no certificate":      {Host: "tcp://" + address, CA: filepath.Join(certs, "ca.pem")},
		"another's":           {Host: "tcp://" + address, CA: filepath.Join(certs, "ca.pem"), Cert: filepath.Join(strangers, "cert.pem"), Key: filepath.Join(strangers, "key.pem")},
		"an engine unknown":   {Host: "tcp://" + address, CA: filepath.Join(strangers, "ca.pem"), Cert: filepath.Join(certs, "cert.pem"), Key: filepath.Join(certs, "key.pem")},
		"files are not there": {Host: "tcp://" + address, CA: filepath.Join(certs, "none.pem")},
	} {
		p, err := docker.New(engineOptions(t, e))
		if err == nil {
			_, err = p.List(within(t))
			if closed := p.Close(); closed != nil {
				t.Error(closed)
			}
		}
		if err == nil {
			t.Errorf("%s: the engine is used all the same", name)
		}
	}
}

func store(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeCertificates makes an authority, and certificates of an engine on this machine
// and of a client.
func writeCertificates(t *testing.T, dir string) {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write := func(name, kind string, der []byte) {
		store(t, filepath.Join(dir, name), string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
	}
	template := func(serial int64, usage x509.ExtKeyUsage) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: fmt.Sprintf("test %d", serial)},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		}
	}
	caKey, ca := key(), template(1, x509.ExtKeyUsageAny)
	ca.IsCA, ca.KeyUsage, ca.IPAddresses = true, x509.KeyUsageCertSign, nil
	for name, tc := range map[string]struct {
		keyFile string
		cert    *x509.Certificate
		key     *ecdsa.PrivateKey
	}{
		"ca.pem":     {"ca-key.pem", ca, caKey},
		"server.pem": {"server-key.pem", template(2, x509.ExtKeyUsageServerAuth), key()},
		"cert.pem":   {"key.pem", template(3, x509.ExtKeyUsageClientAuth), key()},
	} {
		der, err := x509.CreateCertificate(rand.Reader, tc.cert, ca, tc.key.Public(), caKey)
		if err != nil {
			t.Fatal(err)
		}
		write(name, "CERTIFICATE", der)
		if der, err = x509.MarshalPKCS8PrivateKey(tc.key); err != nil {
			t.Fatal(err)
		}
		write(tc.keyFile, "PRIVATE KEY", der)
	}
}

// TestPodman uses Podman's service, which speaks as Docker does.
func TestPodman(t *testing.T) {
	t.Parallel()
	box := core(t, engineOptions(t, docker.Endpoint{Host: testdocker.Podman(t)}))
	if err := box.Pause(within(t)); err != nil {
		t.Fatalf("pause: %v", err)
	}
	if err := box.Resume(within(t)); err != nil {
		t.Fatalf("resume: %v", err)
	}
	if got := shell(t, box, "echo on"); got != "on\n" {
		t.Errorf("after a pause: %q", got)
	}
}

// TestRootless uses engines of users without rights.
func TestRootless(t *testing.T) {
	t.Parallel()
	testdocker.Host(t) // skips without an engine
	for name, start := range map[string]func(testing.TB) string{"docker": testdocker.StartRootless, "podman": testdocker.PodmanRootless} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := engineOptions(t, docker.Endpoint{Host: start(t)})
			box := core(t, o)
			if got := strings.Fields(shell(t, box, "cat /proc/self/uid_map")); len(got) < 3 || got[0] != "0" || got[1] != "65534" {
				t.Errorf("users are mapped as %q, want root to be the engine's user", got)
			}
			if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
				return // such an engine may have been given control groups
			}
			for what, limit := range map[string]sandpit.Resources{"memory": {Memory: 64 << 20}, "processors": {CPUs: 0.5}, "processes": {PIDs: 100}} {
				_, err := open(t, o).Create(within(t), sandpit.NewID(), sandpit.Spec{Image: rootArchive(t), Resources: limit})
				if wantCode(t, err, sandpit.Unsupported); err != nil && !strings.Contains(err.Error(), what) {
					t.Errorf("an explicit limit of %s: %v", what, err)
				}
			}
		})
	}
}

// TestUserNamespaces uses an engine whose containers have user namespaces: root inside
// has no rights on the machine. The engine has a network, too.
func TestUserNamespaces(t *testing.T) {
	t.Parallel()
	testdocker.Host(t) // skips without an engine
	o := engineOptions(t, docker.Endpoint{Host: testdocker.StartRemapped(t)})
	box := core(t, o)
	if got := strings.Fields(shell(t, box, "cat /proc/self/uid_map")); len(got) != 3 || got[0] != "0" || got[1] == "0" {
		t.Errorf("users are mapped as %q", got)
	}
	testOnline(t, o)
}

// testOnline puts sandboxes into a network of the engine if that is asked for, and no
// others.
func testOnline(t *testing.T, o docker.Options) {
	t.Helper()
	o.StateDir = t.TempDir()
	image := rootArchive(t)
	p := open(t, o)
	online := sandpit.Spec{Image: image, Network: sandpit.NetworkPolicy{Online: true}}
	_, err := p.Create(within(t), sandpit.NewID(), online)
	wantCode(t, err, sandpit.Unsupported)
	o.Network, o.StateDir = "bridge", t.TempDir()
	p = open(t, o)
	web, reader, offline := create(t, p, online), create(t, p, online), create(t, p, sandpit.Spec{Image: image})
	shell(t, web, "mkdir -p /www && echo hello > /www/index.html && httpd -p 8080 -h /www")
	address := strings.TrimSpace(shell(t, web, "ip -4 -o addr show dev eth0 | sed -E 's,.* inet ([0-9.]+)/.*,\\1,'"))
	get := `printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 60 ` + address + " 8080"
	if got := shell(t, reader, get); !strings.HasSuffix(got, "hello\n") {
		t.Errorf("from the other online sandbox: %q", got)
	}
	if out, code := run(t, offline, "sh", "-c", get); code == 0 || !strings.Contains(out, "unreachable") {
		t.Errorf("from an offline sandbox: %q, exit code %d, want that the network cannot be reached", out, code)
	}
	if got := shell(t, offline, "ls /sys/class/net"); got != "lo\n" {
		t.Errorf("an offline sandbox has the interfaces %q", got)
	}
}

// runscVariable names gVisor's runtime, where it is not among the usual programs.
const runscVariable = "SANDPIT_TEST_RUNSC"

// TestRunsc uses gVisor's runtime: as it is, when it forgets what a container has
// changed, and told to leave files to the engine.
func TestRunsc(t *testing.T) {
	t.Parallel()
	testdocker.Host(t) // skips without an engine
	runsc := os.Getenv(runscVariable)
	if runsc == "" {
		var err error
		if runsc, err = exec.LookPath("runsc"); err != nil {
			t.Skipf("there is no runsc, which Debian has not; name one by %s", runscVariable)
		}
	}
	wrapped := filepath.Join(t.TempDir(), "runsc-files")
	if err := os.WriteFile(wrapped, []byte("#!/bin/sh\nexec "+runsc+" --overlay2=none \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	o := engineOptions(t, docker.Endpoint{Host: testdocker.Start(t, "--add-runtime=runsc="+runsc, "--add-runtime=runsc-files="+wrapped)})
	o.Runtime = "runsc-files"
	box := core(t, o)
	if got := shell(t, box, "dmesg | head -n 1"); !strings.Contains(got, "gVisor") {
		t.Errorf("the kernel says %q", got)
	}
	o.Runtime, o.StateDir = "runsc", t.TempDir()
	forgetful := create(t, open(t, o), sandpit.Spec{Image: rootArchive(t)})
	shell(t, forgetful, "echo kept > /file")
	err := forgetful.Stop(within(t))
	if wantCode(t, err, sandpit.Unsupported); !strings.Contains(sandpit.HintOf(err), "--overlay2=none") {
		t.Errorf("stop: hint %q", sandpit.HintOf(err))
	}
	if got := shell(t, forgetful, "cat /file"); got != "kept\n" {
		t.Errorf("after a stop that was refused: %q", got)
	}
}
