package outage_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// long bounds what takes a moment.
const long = 3 * time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
	t.Cleanup(cancel)
	return ctx
}

// api asks a daemon what it has, without the code that is tested.
type api struct{ http *http.Client }

func (d *daemon) client() *api {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(d.dir, "sock"))
		},
		DisableKeepAlives: true,
	}
	return &api{&http.Client{Transport: transport, Timeout: 30 * time.Second}}
}

func (a *api) get(ctx context.Context, path string, to any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return err
	}
	res, err := a.http.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return json.NewDecoder(res.Body).Decode(to)
}

// file returns what a file of a container holds, or why not.
func (a *api) file(ctx context.Context, container, path string) string {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/containers/"+container+"/archive?path="+path, nil)
	if err != nil {
		return err.Error()
	}
	res, err := a.http.Do(r)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	in := tar.NewReader(res.Body)
	if _, err := in.Next(); err != nil {
		return res.Status + ": " + err.Error()
	}
	data, err := io.ReadAll(in)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func (a *api) answers(ctx context.Context) bool {
	var info map[string]any
	return a.get(ctx, "/info", &info) == nil
}

// leftovers names what there is in the daemon, and of it, but for the volume of the
// guest, which stays. What a killed daemon forgets of its own, such as directories of
// containers and shims without a program, no client can remove through it.
func (d *daemon) leftovers(state string) (left []string) {
	d.t.Helper()
	ctx := within(d.t)
	var containers []struct{ Names []string }
	var volumes struct{ Volumes []struct{ Name string } }
	a := d.client()
	if err := errors.Join(a.get(ctx, "/containers/json?all=1", &containers), a.get(ctx, "/volumes", &volumes)); err != nil {
		d.t.Fatal(err)
	}
	for _, c := range containers {
		left = append(left, "container "+strings.Join(c.Names, ","))
	}
	for _, v := range volumes.Volumes {
		if !strings.HasPrefix(v.Name, "sandpit-guest-") {
			left = append(left, "volume "+v.Name)
		}
	}
	if len(volumes.Volumes) > 1 {
		left = append(left, fmt.Sprint(len(volumes.Volumes), " volumes"))
	}
	for _, pid := range d.guests() {
		left = append(left, "guest "+pid)
	}
	for _, point := range d.mounts() {
		left = append(left, "mount "+point)
	}
	records, err := os.ReadDir(filepath.Join(state, "sandboxes"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, e := range records {
		left = append(left, "record "+e.Name())
	}
	return left
}

// expectNothing complains of what is left after a while.
func (d *daemon) expectNothing(state string) {
	d.t.Helper()
	var left []string
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(100 * time.Millisecond) {
		if left = d.leftovers(state); len(left) == 0 {
			return
		}
	}
	d.t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
}

// endLost ends guests that the daemon does not know any more, having given them time to
// end by themselves.
func (d *daemon) endLost() {
	d.t.Helper()
	var lost []string
	for begin := time.Now(); time.Since(begin) < 5*time.Second; time.Sleep(100 * time.Millisecond) {
		if lost = d.guests(); len(lost) == 0 {
			return
		}
	}
	for _, text := range lost {
		d.t.Logf("the daemon has lost guest %s", text)
		pid, err := strconv.Atoi(text)
		if err != nil {
			d.t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			d.t.Fatal(err)
		}
	}
}

// rootFS is the image of all sandboxes.
func rootFS(t *testing.T) sandpit.Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rootfs.tar")
	if err := os.WriteFile(path, testdocker.Tar(t, testdocker.BusyboxFiles(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	return sandpit.Image(path)
}

// open returns a provider, which is closed when the test ends.
func (d *daemon) open(state string, change func(*docker.Options)) *docker.Provider {
	d.t.Helper()
	o := docker.Options{Endpoint: docker.Endpoint{Host: d.host()}, StateDir: state, Guest: testdocker.Guest(d.t), StopGrace: 2 * time.Second}
	if change != nil {
		change(&o)
	}
	p, err := docker.New(testoptions.Docker(o))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			d.t.Errorf("close: %v", err)
		}
	})
	return p
}

// removeAll does with everything that is listed what a manager does with strangers.
func removeAll(t *testing.T, p *docker.Provider) {
	t.Helper()
	list, err := p.List(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range list {
		box, err := p.Attach(within(t), one.Handle)
		if sandpit.CodeOf(err) == sandpit.NotFound {
			continue // the engine was about to remove it
		}
		if err != nil {
			t.Fatalf("attach: %v", err)
		}
		if err := box.Destroy(within(t)); err != nil {
			t.Fatalf("destroy: %v", err)
		}
	}
}

// run runs a script and returns what it prints.
func run(ctx context.Context, box sandpit.Instance, script string) (string, error) {
	var out bytes.Buffer
	p, err := box.Guest().Start(ctx, sandpit.Command{Args: []string{"sh", "-c", script}, Stdout: &out})
	if err != nil {
		return "", err
	}
	status, err := p.Wait(ctx)
	if err == nil && status.Code != 0 {
		err = fmt.Errorf("%s: %s", script, status)
	}
	return out.String(), err
}
