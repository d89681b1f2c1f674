package gvisor_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

func snapshotOf(tb testing.TB, box sandpit.Instance) sandpit.Snapshot {
	tb.Helper()
	snap, err := box.(sandpit.Snapshotter).Snapshot(tb.Context(), sandpit.NewSnapshotID())
	if err != nil {
		tb.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
	}
	return snap
}

func copyOf(tb testing.TB, p *gvisor.Provider, snap sandpit.Snapshot) sandpit.Instance {
	tb.Helper()
	return create(tb, p, sandpit.Spec{Image: sandpit.SnapshotImage(snap.ID)})
}

func destroy(tb testing.TB, boxes ...sandpit.Instance) {
	tb.Helper()
	for _, box := range boxes {
		if err := box.Destroy(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
}

// counting starts a program that counts in its memory and tells the number when asked.
func counting(tb testing.TB, box sandpit.Instance) {
	tb.Helper()
	output(tb, box, `busybox mkfifo /tmp/ask /tmp/answer
(exec 3<>/tmp/ask 4<>/tmp/answer; n=0; while read x <&3; do n=$((n+1)); echo $n >&4; done) >/dev/null 2>&1 &`)
}

func count(tb testing.TB, box sandpit.Instance) string {
	tb.Helper()
	return output(tb, box, "echo >/tmp/ask; read n </tmp/answer; echo $n")
}

// TestSnapshotKeepsFiles compares the files of copies whose layer is in memory and on
// disk, and of the original.
func TestSnapshotKeepsFiles(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	images := map[string]sandpit.Image{"on disk": sandpit.HostImage, "in memory": etcImage(t)}
	for name, image := range images {
		t.Run(name, func(t *testing.T) {
			box := create(t, p, sandpit.Spec{Image: image})
			counting(t, box)
			count(t, box)
			output(t, box, manyKinds)
			before := output(t, box, everything)
			snap := snapshotOf(t, box)
			fork := copyOf(t, p, snap)
			for who, b := range map[string]sandpit.Instance{"original": box, "copy": fork} {
				if output(t, b, everything) != before {
					t.Errorf("the files of the %s have changed", who)
				}
				if got := count(t, b); got != "2" {
					t.Errorf("the %s counts %s", who, got)
				}
			}
			output(t, fork, "echo of the copy > /workspace/tree/large")
			again := copyOf(t, p, snapshotOf(t, fork)) // a copy of a copy
			if got := output(t, again, "cat /workspace/tree/large"); got != "of the copy" {
				t.Errorf("got %q", got)
			}
			if output(t, box, everything) != before {
				t.Error("a copy has changed the files of the original")
			}
			destroy(t, box, fork, again)
		})
	}
}

// TestCopiesAreNoTwins looks at what each sandbox must have for itself, whether copies
// have the programs or begin with files alone, and also if these come from elsewhere.
func TestCopiesAreNoTwins(t *testing.T) {
	t.Parallel()
	for name, secrets := range map[string][]string{"memory": nil, "files": {"TOKEN"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			copiesAreNoTwins(t, secrets)
		})
	}
}

func copiesAreNoTwins(t *testing.T, secrets []string) {
	t.Helper()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{
		Image: etcImage(t), Hostname: "first", Env: map[string]string{"OLD": "secret-of-the-first"}, Labels: map[string]string{"a": "first"}, WorkDir: "/w", Secrets: secrets,
	})
	output(t, box, "echo 0123456789abcdef0123456789abcdef > /etc/machine-id; busybox chmod 444 /etc/machine-id")
	const numbers = `hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; busybox head -c 16 /dev/urandom | busybox od -An -tx1`
	snap := snapshotOf(t, box)
	if snap.Memory != (secrets == nil) || snap.Spec.Secrets != nil {
		t.Errorf("snapshot: %+v", snap)
	}
	data, err := os.ReadFile(filepath.Join(dir, "snapshots", string(snap.ID), "manifest.json"))
	if err != nil || bytes.Contains(data, []byte("secret-of-the-first")) || snap.Spec.Env != nil {
		t.Errorf("the manifest: %v, %s", err, data)
	}
	spec := sandpit.Spec{
		Image: sandpit.SnapshotImage(snap.ID), Hostname: "second", Env: map[string]string{"NEW": "x"},
		Labels: map[string]string{"a": "second"}, WorkDir: "/other",
	}
	second, third := create(t, p, spec), copyOf(t, p, snap)
	var exported bytes.Buffer
	if err := p.ExportSnapshot(t.Context(), snap.ID, &exported); err != nil {
		t.Fatal(err)
	}
	imported, err := p.ImportSnapshot(t.Context(), sandpit.NewSnapshotID(), &exported)
	if err != nil {
		t.Fatal(err)
	}
	fourth := copyOf(t, p, imported)
	all := map[string]bool{}
	for i, b := range []sandpit.Instance{box, second, third, fourth} {
		told := strings.Split(output(t, b, numbers), "\n")
		if want := []string{"first", "second", "first", "first"}[i]; told[0] != want || len(told) != 4 {
			t.Errorf("number %d says %q, want host name %s", i, told, want)
		}
		for _, number := range told[1:] {
			if all[number] {
				t.Errorf("%q is in two", number)
			}
			all[number] = true
		}
	}
	if got := output(t, second, `echo "$OLD$NEW"; pwd`); got != "x\n/other" {
		t.Errorf("environment and directory: %q", got)
	}
	if now, err := strconv.ParseInt(output(t, second, "busybox date +%s"), 10, 64); err != nil || time.Since(time.Unix(now, 0)).Abs() > time.Minute {
		t.Errorf("the clock of a copy: %d, %v", now, err)
	}
	list, err := p.List(t.Context())
	if err != nil || !slices.ContainsFunc(list, func(p sandpit.Placement) bool { return p.ID == second.ID() && p.Spec.Labels["a"] == "second" }) {
		t.Errorf("list: %+v, %v", list, err)
	}
	keysDiffer(t, dir)
	destroy(t, box, second, third, fourth)
}

// keysDiffer reads the keys of all sandboxes.
func keysDiffer(t *testing.T, dir string) {
	t.Helper()
	records, err := filepath.Glob(filepath.Join(dir, "run", "engines", "*", "boxes", "*.json"))
	if err != nil || len(records) != 4 {
		t.Fatalf("records: %v, %v", records, err)
	}
	keys := map[string]bool{}
	for _, path := range records {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(data), `"token":"`)
		key, _, _ := strings.Cut(rest, `"`)
		if !found || key == "" || keys[key] {
			t.Errorf("the key of %s is of another, too", path)
		}
		keys[key] = true
	}
}

// TestCopyOnline has a copy use a network of its own.
func TestCopyOnline(t *testing.T) {
	t.Parallel()
	host := machineAddr(t)
	p := newProviderWith(t, t.TempDir(), func(c *gvisor.Config) { c.Resolvers = []netip.AddrPort{serveNames(t, host)} })
	echo, closed := serveEcho(t, host), serveEcho(t, host)
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{echo.String()}, Inside: everywhere()}})
	wantReached(t, box, echo)
	snap := snapshotOf(t, box)
	same := copyOf(t, p, snap)
	other := create(t, p, sandpit.Spec{
		Image: sandpit.SnapshotImage(snap.ID), Network: sandpit.NetworkPolicy{Online: true, Allow: []string{closed.String()}, Inside: everywhere()},
	})
	for _, b := range []sandpit.Instance{box, same} {
		wantReached(t, b, echo)
		wantRefused(t, b, closed)
	}
	wantReached(t, other, closed)
	wantRefused(t, other, echo)
	if err := box.(sandpit.Suspender).Suspend(t.Context()); err != nil {
		t.Fatal(err)
	}
	resume(t, box)
	wantReached(t, box, echo)
	wantRefused(t, box, closed)
	destroy(t, box, same, other)
}

// TestDamagedSnapshots cuts each file off.
func TestDamagedSnapshots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	counting(t, box)
	snap := snapshotOf(t, box)
	saved := filepath.Join(dir, "snapshots", string(snap.ID))
	for _, name := range []string{"manifest.json", "checkpoint.img", "pages_meta.img", "pages.img", "root.erofs", "guest.erofs"} {
		path := filepath.Join(saved, name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path, path+".whole"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, whole[:len(whole)/2], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{Image: sandpit.SnapshotImage(snap.ID)}); sandpit.CodeOf(err) != sandpit.Internal {
			t.Errorf("create with half of %s: %v", name, err)
		}
		if err := box.(sandpit.Rollbacker).Rollback(t.Context(), snap.ID); sandpit.CodeOf(err) != sandpit.Internal {
			t.Errorf("roll back with half of %s: %v", name, err)
		}
		if err := os.Rename(path+".whole", path); err != nil {
			t.Fatal(err)
		}
	}
	if got := count(t, box); got != "1" {
		t.Errorf("the original counts %s", got)
	}
	destroy(t, box, copyOf(t, p, snap))
}

// TestNonsenseIsNotLoaded has a kernel of the right size that is invalid: what was there is
// there still.
func TestNonsenseIsNotLoaded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	counting(t, box)
	count(t, box)
	snap := snapshotOf(t, box)
	path := filepath.Join(dir, "snapshots", string(snap.ID), "checkpoint.img")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte("nonsense"), int(info.Size()/8+1))[:info.Size()], 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{Image: sandpit.SnapshotImage(snap.ID)}); err == nil {
		t.Error("nonsense runs")
	}
	if err := box.(sandpit.Rollbacker).Rollback(t.Context(), snap.ID); err == nil {
		t.Error("rolled back to nonsense")
	}
	if got := count(t, box); got != "2" {
		t.Errorf("the original counts %s", got)
	}
	destroy(t, box)
	expectList(t, p)
}

// TestSnapshotOnFullDisk has no room for one.
func TestSnapshotOnFullDisk(t *testing.T) {
	t.Parallel()
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=8m,mode=0700"); err != nil {
		if os.Getenv("SANDPIT_REQUIRE") != "" && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skipf("no small disk here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p := newProviderWith(t, t.TempDir(), func(c *gvisor.Config) {
		c.SnapshotDir, c.SuspendDir = filepath.Join(small, "snapshots"), filepath.Join(small, "suspended")
	})
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t), Env: map[string]string{"A": "b"}})
	counting(t, box)
	output(t, box, "busybox head -c 20000000 /dev/urandom > /large; echo ok")
	for number := range 2 {
		_, err := box.(sandpit.Snapshotter).Snapshot(t.Context(), sandpit.NewSnapshotID())
		if sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.HintOf(err) == "" {
			t.Errorf("snapshot: %v (hint: %s)", err, sandpit.HintOf(err))
		}
		err = box.(sandpit.Suspender).Suspend(t.Context())
		if sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.HintOf(err) == "" {
			t.Errorf("suspend: %v (hint: %s)", err, sandpit.HintOf(err))
		}
		if got := count(t, box) + output(t, box, "echo $A"); got != strconv.Itoa(number+1)+"b" {
			t.Errorf("afterwards: %q", got)
		}
	}
	for _, sub := range []string{"snapshots", "suspended"} {
		expectEmpty(t, filepath.Join(small, sub))
	}
	destroy(t, box)
}

// TestExport carries a snapshot to another provider.
func TestExport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, other := newProvider(t, dir), newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{Image: etcImage(t), Env: map[string]string{"A": "b"}})
	counting(t, box)
	output(t, box, "echo far > /file")
	snap := snapshotOf(t, box)
	var stream bytes.Buffer
	if err := p.ExportSnapshot(t.Context(), snap.ID, &stream); err != nil {
		t.Fatal(err)
	}
	id := sandpit.NewSnapshotID()
	added, err := other.ImportSnapshot(t.Context(), id, bytes.NewReader(stream.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	fork := copyOf(t, other, added)
	if got := count(t, fork) + output(t, fork, "cat /file"); got != "1far" {
		t.Errorf("the copy has %q", got)
	}
	destroy(t, box, fork)
	for what, change := range map[string]func(m map[string]any){
		"nothing": func(map[string]any) {}, // so that the others mean something
		"a mount": func(m map[string]any) {
			inside(m, "record", "spec")["mounts"] = []map[string]string{{"source": "/etc", "target": "/mnt"}}
		},
		"the machine's files": func(m map[string]any) {
			inside(m, "record")["shown"] = []map[string]string{{"source": "/etc", "target": "/mnt"}}
		},
		"another limit":     func(m map[string]any) { inside(m, "record", "spec")["resources"] = map[string]any{"pids": 9} },
		"a bad id":          func(m map[string]any) { inside(m, "record")["id"] = "../../x" },
		"no size":           func(m map[string]any) { delete(inside(m, "sizes"), "pages.img") },
		"less than nothing": func(m map[string]any) { inside(m, "sizes")["pages.img"] = -1 },
		"another size":      func(m map[string]any) { inside(m, "sizes")["pages.img"] = 4096 },
	} {
		added, err := other.ImportSnapshot(t.Context(), sandpit.NewSnapshotID(), bytes.NewReader(withManifest(t, stream.Bytes(), change)))
		if (err == nil) != (what == "nothing") {
			t.Errorf("with %s changed: %+v, %v", what, added, err)
		}
	}
	local := create(t, p, sandpit.Spec{})
	if err := p.ExportSnapshot(t.Context(), snapshotOf(t, local).ID, &stream); sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("export what shows the machine's directories: %v", err)
	}
	destroy(t, local)
}

func inside(m map[string]any, names ...string) map[string]any {
	for _, name := range names {
		m, _ = m[name].(map[string]any)
	}
	return m
}

// withManifest returns an exported snapshot whose manifest is changed.
func withManifest(t *testing.T, stream []byte, change func(map[string]any)) []byte {
	t.Helper()
	var out bytes.Buffer
	from, to := tar.NewReader(bytes.NewReader(stream)), tar.NewWriter(&out)
	for {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(from)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "manifest.json" {
			var m map[string]any
			if err := json.Unmarshal(data, &m); err != nil {
				t.Fatal(err)
			}
			change(m)
			if data, err = json.Marshal(m); err != nil {
				t.Fatal(err)
			}
			h.Size = int64(len(data))
		}
		if err := to.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := to.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
