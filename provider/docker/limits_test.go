package docker_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// TestLimits tries to go beyond each limit.
func TestLimits(t *testing.T) {
	t.Parallel()
	p := open(t, options(t))
	box := create(t, p, sandpit.Spec{Image: busybox, Resources: sandpit.Resources{Memory: 64 << 20, CPUs: 0.5, PIDs: 40}})

	// The largest program goes, and not the sandbox.
	out, code := run(t, box, "sh", "-c", `x=$(head -c 200000000 /dev/zero | tr '\0' x); echo survived`)
	if code == 0 || strings.Contains(out, "survived") {
		t.Errorf("200 MB fit into 64 MiB: %q, code %d", out, code)
	}
	if got := shell(t, box, "echo still here"); got != "still here\n" {
		t.Errorf("got %q", got)
	}
	const soon = "until grep -q 500 /proc/$$/oom_score_adj; do sleep 0.01; done; cat /proc/1/oom_score_adj"
	if got := shell(t, box, soon); got != "0\n" {
		t.Errorf("a program is killed before the guest, whose own score is %q", got)
	}
	// The guest is within the same limit, and answers many at once below it.
	var readers sync.WaitGroup
	defer readers.Wait()
	for range 8 {
		readers.Go(func() {
			for range 25 {
				if _, err := box.Guest().Stat(within(t), "", "/etc"); err != nil {
					t.Errorf("while no more processes fit: %v", err)
					return
				}
			}
		})
	}
	out, _ = run(t, box, "sh", "-c", `for i in $(seq 300); do sleep 30 & done 2>&1; echo end`)
	if !strings.Contains(out, "an't fork") && !strings.Contains(out, "temporarily unavailable") {
		t.Errorf("300 processes fit into 40: %q", out)
	}
	for begin := time.Now(); ; { // what failed to fork may have kept the shell
		stats, err := box.Stats(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if stats.PIDs > 40+32 {
			t.Errorf("there are %d processes and threads", stats.PIDs)
		}
		if want := (sandpit.Resources{Memory: 64 << 20, CPUs: 0.5, PIDs: 40}); stats.Limits != want {
			t.Errorf("limits: got %+v, want %+v", stats.Limits, want)
		}
		if stats.OOMKills > 0 {
			break
		}
		if time.Since(begin) > long {
			t.Fatal("no kill for lack of memory was counted")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestLimitsRefused asks for what this engine cannot enforce, and what can never be.
func TestLimitsRefused(t *testing.T) {
	t.Parallel()
	p := open(t, options(t))
	info, err := testdocker.Client(t).Info(within(t), client.InfoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: busybox, Resources: sandpit.Resources{Memory: 1}})
	wantCode(t, err, sandpit.Invalid)
	if info.Info.Driver != "overlay2" || !strings.Contains(strings.Join(flatten(info.Info.DriverStatus), " "), "extfs") {
		t.Skipf("the engine's storage driver %s may be able to limit the disk", info.Info.Driver)
	}
	_, err = p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: busybox, Resources: sandpit.Resources{Disk: 1 << 30}})
	wantCode(t, err, sandpit.Unsupported)
	if sandpit.HintOf(err) == "" {
		t.Errorf("no hint: %v", err)
	}
}

func flatten(pairs [][2]string) (all []string) {
	for _, p := range pairs {
		all = append(all, p[0], p[1])
	}
	return all
}

// TestWalls looks at what root of a sandbox may do.
func TestWalls(t *testing.T) {
	t.Parallel()
	box := create(t, open(t, options(t)), sandpit.Spec{Image: busybox})
	status := shell(t, box, "cat /proc/self/status")
	for _, want := range []string{"CapEff:\t00000000000004fb\n", "CapBnd:\t00000000000004fb\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("status has no %q:\n%s", want, status)
		}
	}
	if got := shell(t, box, "ls /sys/class/net"); got != "lo\n" {
		t.Errorf("network: %q", got)
	}
	for _, script := range []string{
		"mount -t tmpfs none /mnt", "echo 1 > /proc/sys/kernel/panic", "mknod /tmp/null c 1 3", "cat /proc/1/environ", "readlink /proc/1/fd/5", "echo x > /proc/1/mem",
		"echo x > /.sandpit/x", "hostname other",
	} {
		if out, code := run(t, box, "sh", "-c", script); code == 0 {
			t.Errorf("root may %s: %s", script, out)
		}
	}
	raw, err := testdocker.Client(t).ContainerInspect(within(t), "sandpit-"+string(box.ID()), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	host := raw.Container.HostConfig
	if host.Privileged || host.NetworkMode != "none" || host.MemorySwap != host.Memory || host.Memory == 0 || host.LogConfig.Type != "none" {
		t.Errorf("the container: %+v", host)
	}
}

func TestReadOnlyRoot(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.ReadOnlyRoot, o.TmpfsSize = true, 4<<20
	box := create(t, open(t, o), sandpit.Spec{Image: busybox})
	if out, code := run(t, box, "sh", "-c", "echo x > /etc/x"); code == 0 {
		t.Errorf("the root can be written: %s", out)
	}
	if got := shell(t, box, "pwd; echo x > here; echo x > /tmp/x; cat here"); got != "/workspace\nx\n" {
		t.Errorf("got %q", got)
	}
	if out, code := run(t, box, "sh", "-c", "head -c 8000000 /dev/zero > /tmp/large"); code == 0 {
		t.Errorf("8 MB fit into 4 MiB: %s", out)
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("outside"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := open(t, options(t))
	box := create(t, p, sandpit.Spec{Image: busybox, Mounts: []sandpit.Mount{
		{Source: dir, Target: "/closed", ReadOnly: true}, {Source: dir, Target: "/open"},
	}})
	if got := shell(t, box, "cat /closed/file; echo inside > /open/new; cat /closed/new"); got != "outsideinside\n" {
		t.Errorf("got %q", got)
	}
	if out, code := run(t, box, "sh", "-c", "echo x > /closed/x"); code == 0 {
		t.Errorf("what is read only can be written: %s", out)
	}
	for _, target := range []string{"/.sandpit", "/.sandpit/x", "/proc", "/", "relative"} {
		_, err := p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: busybox, Mounts: []sandpit.Mount{{Source: dir, Target: target}}})
		wantCode(t, err, sandpit.Invalid)
	}
}

// TestStartFails has the engine make a container that it cannot start, and nothing is
// left of it.
func TestStartFails(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.OpenFiles = 1 << 40 // more than any kernel has
	p := open(t, o)
	_, err := p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: busybox})
	if err == nil || !strings.Contains(err.Error(), "start the container") {
		t.Errorf("more open files than there can be: %v, want that it cannot be started", err)
	}
	list, err := p.List(within(t))
	records, readErr := os.ReadDir(filepath.Join(o.StateDir, "sandboxes"))
	if err != nil || readErr != nil || len(list)+len(records) != 0 {
		t.Errorf("left: %v, %v, %v, %v", list, records, err, readErr)
	}
}

func TestOptionsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*docker.Options){
		"the machine's network":         func(o *docker.Options) { o.Network = "host" },
		"another container's network":   func(o *docker.Options) { o.Network = "container:x" },
		"the machine's user namespace":  func(o *docker.Options) { o.Userns = "host" },
		"no state directory":            func(o *docker.Options) { o.StateDir = "" },
		"an invalid host":               func(o *docker.Options) { o.Endpoint.Host = "nowhere" },
		"no default limit":              func(o *docker.Options) { o.Defaults.Disk = 0 },
		"no size of tmpfs":              func(o *docker.Options) { o.TmpfsSize = 0 },
		"no time for a call":            func(o *docker.Options) { o.CallTimeout = 0 },
		"limits that can never be kept": func(o *docker.Options) { o.Defaults.Memory = 1 },
	} {
		o := testoptions.Docker(docker.Options{StateDir: t.TempDir()})
		change(&o)
		if _, err := docker.New(o); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
