package daytona_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/daytona"
)

// The programs of an image with services. The second reports that a service starts, and after a while
// that it runs, or what the file /srv/state says.
const (
	supervisord = `#!/bin/sh
printf '%s\n' "$*" > /srv/arguments
date +%s >> /srv/starts
echo $$ > /srv/pid
exec sleep 100000
`
	supervisorctl = `#!/bin/sh
if ! grep -q 100000 "/proc/$(cat /srv/pid)/cmdline"; then echo "unix:///tmp/supervisor.sock no such file"; exit 4; fi
n=$(cat /srv/count 2>/dev/null || echo 0); echo $((n + 1)) > /srv/count
if [ "$n" -lt 2 ]; then echo "chrome    STARTING"; else echo "chrome    $(cat /srv/state)   pid 7, uptime 0:00:01"; fi
echo "x11vnc    RUNNING   pid 8, uptime 0:00:01"
`
)

// TestServices starts the services of an image: with the sandbox, again with its next start, and not
// in an image that has none.
func TestServices(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	o := c.options(t)
	plain := open(t, o)
	builder := create(t, plain, sandpit.Spec{})
	for name, content := range map[string]string{"/srv/bin/supervisord": supervisord, "/srv/bin/supervisorctl": supervisorctl, "/srv/conf": "", "/srv/state": "RUNNING"} {
		err := builder.Guest().WriteFile(within(t), "", name, strings.NewReader(content), sandpit.WriteOptions{Mode: 0o755})
		if err != nil {
			t.Fatal(err)
		}
	}
	id := sandpit.NewSnapshotID()
	if _, err := builder.Snapshot(within(t), id); err != nil {
		t.Fatal(err)
	}
	o.Entrypoint = "/srv/bin/supervisord -n -c /srv/conf"
	p := open(t, o)
	box := create(t, p, sandpit.Spec{Image: sandpit.SnapshotImage(id)})
	if got := shell(t, box, "cat /srv/arguments; wc -l < /srv/starts; cat /srv/count"); got != "-n -c /srv/conf\n1\n3\n" {
		t.Errorf("arguments, starts and looks: %q", got)
	}
	if err := box.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := box.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, box, "wc -l < /srv/starts"); got != "2\n" {
		t.Errorf("%q starts, want 2", got)
	}
	none := create(t, p, sandpit.Spec{})
	if got := shell(t, none, "ls /srv 2>/dev/null; :"); got != "" {
		t.Errorf("an image without services has %q", got)
	}
	testFailingServices(t, c, o, builder)
}

// testFailingServices checks that a sandbox whose services do not start is deleted again.
func testFailingServices(t *testing.T, c *cloud, o daytona.Options, builder *daytona.Instance) {
	t.Helper()
	o.Manager = "test-" + string(sandpit.NewID())
	for state, want := range map[string]string{"FATAL": "supervisord cannot start chrome", "BACKOFF": "supervisord is not ready after 3s"} {
		o.ServiceTimeout = time.Minute
		if state == "BACKOFF" { // it never ends
			o.ServiceTimeout = 3 * time.Second
		}
		if err := builder.Guest().WriteFile(within(t), "", "/srv/state", strings.NewReader(state), sandpit.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		saved := sandpit.NewSnapshotID()
		if _, err := builder.Snapshot(within(t), saved); err != nil {
			t.Fatal(err)
		}
		made, err := open(t, o).Create(within(t), sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(daytona.SnapshotPrefix + snapshotOf(t, c, saved))})
		wantCode(t, err, sandpit.Unavailable)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: created %v with the error %v, want %q", state, made, err, want)
		}
		if left := c.names(t, o.Manager); len(left) > 0 {
			t.Errorf("%s: %v are left", state, left)
		}
	}
}

// snapshotOf returns the name of a snapshot at the cloud.
func snapshotOf(t *testing.T, c *cloud, id sandpit.SnapshotID) string {
	t.Helper()
	_, text := c.call(t, http.MethodGet, "/snapshots?limit=200")
	for part := range strings.SplitSeq(string(text), `"`) {
		if strings.HasSuffix(part, string(id)) && strings.HasPrefix(part, "sandpit-") {
			return part
		}
	}
	t.Fatalf("no snapshot %s in %s", id, text)
	return ""
}
