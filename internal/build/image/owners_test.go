package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// version is what the file of that name says in an image.
func version(t *testing.T, s interface {
	Resolve(ctx context.Context, ref sandpit.Image, p Progress) (Root, error)
}, ref sandpit.Image,
) string {
	t.Helper()
	return all(t, resolved(t, s, ref).Path)["version"]
}

func versioned(t *testing.T, text string) parts {
	t.Helper()
	return parts{layers: [][]byte{archiveOf(t, file("version", text))}}
}

// importVersion imports an image by the administrator.
func importVersion(t *testing.T, s *Store, name, text string) Entry {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "version"), text)
	list, err := s.Import(t.Context(), dir, name, nil)
	must(t, err)
	return list[0]
}

func namesOfList(list []Entry) string {
	var names []string
	for _, e := range list {
		names = append(names, e.Name)
	}
	return strings.Join(names, " ")
}

func TestOwnersHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.push(t, "tool", "v1", versioned(t, "1"))
	s := newClientStore(t, Options{})
	alice, bob := s.For("alice"), s.For("bob")
	ref := h.ref("tool:v1")
	id := resolved(t, alice, ref).ID
	if _, err := bob.Resolve(t.Context(), sandpit.Image(id), nil); !errors.Is(err, sandpit.NotFound) {
		t.Errorf("bob uses the ID of alice's image: %v", err)
	}
	if list, err := bob.List(); err != nil || len(list) > 0 {
		t.Errorf("bob sees %v (%v)", list, err)
	}
	if has, err := s.Has(string(ref)); err != nil || has {
		t.Errorf("alice's name is shared (%v)", err)
	}
	list, err := alice.List()
	must(t, err)
	if len(list) != 1 || list[0].ID != id || list[0].Owner != "alice" || !list[0].Used.IsZero() {
		t.Errorf("alice sees %+v", list)
	}
	if got := version(t, alice, sandpit.Image(id)); got != "1" {
		t.Errorf("alice's own ID gives %q", got)
	}

	// What the registry has by now is bob's business alone.
	h.push(t, "tool", "v1", versioned(t, "2"))
	if got := version(t, bob, ref); got != "2" {
		t.Errorf("bob gets %q", got)
	}
	if got := version(t, alice, ref); got != "1" {
		t.Errorf("alice gets %q after bob has fetched", got)
	}

	// A shared name counts before both.
	h.push(t, "tool", "v1", versioned(t, "3"))
	_, err = s.Pull(t.Context(), string(ref), true, nil)
	must(t, err)
	for _, v := range []View{alice, bob} {
		if got := version(t, v, ref); got != "3" {
			t.Errorf("%s gets %q where the administrator has a name", v.owner, got)
		}
		list, err := v.List()
		must(t, err)
		if namesOfList(list) != string(ref) || list[0].Owner != "" {
			t.Errorf("%s sees %+v", v.owner, list)
		}
	}
	all, err := s.List()
	must(t, err)
	if got := namesOfList(all); got != strings.TrimSpace(strings.Repeat(" "+string(ref), 3)) {
		t.Errorf("the administrator sees %q", got)
	}
	if _, err := s.Remove(t.Context(), string(ref)); err != nil {
		t.Fatal(err)
	}
	if got := version(t, alice, ref); got != "1" {
		t.Errorf("alice gets %q after the shared name is gone", got)
	}
}

// TestIDsAreNoRights asks for images that no name of an owner's means.
func TestIDsAreNoRights(t *testing.T) {
	t.Parallel()
	s := newClientStore(t, Options{Pull: PullNever})
	alice := s.For("alice")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "secret"), "x")
	directory := resolved(t, s, sandpit.Image(dir)).ID
	step, err := s.Extend(t.Context(), Extension{Base: sandpit.Image(directory), Key: "step", Owner: "bob"}, nil)
	must(t, err)
	build := "template:" + string(sandpit.NewBuildID())
	_, err = s.SetTemplate(t.Context(), sandpit.Image(build), step.ID)
	must(t, err)
	missing := strings.Repeat("0", 64)
	want := fmt.Sprintf(`image %s: no image in the cache has the ID "%s"`, missing, missing)
	for what, id := range map[string]string{"a directory": directory, "a step and a build": step.ID, "nothing": missing} {
		_, err := alice.Resolve(t.Context(), sandpit.Image(id), nil)
		if !errors.Is(err, sandpit.NotFound) || err.Error() != strings.ReplaceAll(want, missing, id) {
			t.Errorf("%s by its ID: %v", what, err)
		}
	}
	_, err = alice.Resolve(t.Context(), sandpit.Image(build), nil)
	other := "template:" + string(sandpit.NewBuildID())
	_, unknown := alice.Resolve(t.Context(), sandpit.Image(other), nil)
	if !errors.Is(err, sandpit.NotFound) || err.Error() != strings.ReplaceAll(unknown.Error(), other, build) {
		t.Errorf("a build by its name: %v, one that is not there: %v", err, unknown)
	}
	for _, path := range []string{dir, "./x", "x.tar"} {
		if _, err := alice.Resolve(t.Context(), sandpit.Image(path), nil); !errors.Is(err, sandpit.PermissionDenied) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if list, err := alice.List(); err != nil || len(list) > 0 {
		t.Errorf("alice sees %+v (%v)", list, err)
	}
	// A name that the administrator gave makes it available to all owners.
	_, err = s.SetTemplate(t.Context(), "template:tools", step.ID)
	must(t, err)
	_ = resolved(t, alice, "template:tools")
	_ = resolved(t, alice, sandpit.Image(step.ID))
	if list, err := alice.List(); err != nil || namesOfList(list) != "template:tools" {
		t.Errorf("alice sees %+v (%v)", list, err)
	}
	_ = resolved(t, alice, sandpit.HostImage)
}

// TestKnowingAManifestIsNoRight has a registry claim to have what another one has given to
// another owner: the manifest and configuration are known, the layers are not.
func TestKnowingAManifestIsNoRight(t *testing.T) {
	t.Parallel()
	honest, evil := newHub(t), newHub(t)
	secret := simple(t)
	honest.push(t, "bob/private", "v1", secret)
	evil.push(t, "x", "same", secret)
	// The same layers below another configuration are another image.
	other := secret
	other.config = map[string]any{"User": "0:0"}
	evil.push(t, "x", "other", other)
	refuse := func(w http.ResponseWriter, r *http.Request) bool {
		for _, l := range secret.layers {
			if strings.HasSuffix(r.URL.Path, sha256Of(l)) {
				w.WriteHeader(http.StatusNotFound)
				return true
			}
		}
		return false
	}
	evil.set(refuse)
	s := newClientStore(t, Options{})
	alice, bob := s.For("alice"), s.For("bob")
	image := resolved(t, bob, honest.ref("bob/private:v1"))
	layers := honest.got("/blobs/")
	for _, tag := range []string{"same", "other"} {
		for _, v := range []interface {
			Resolve(ctx context.Context, ref sandpit.Image, p Progress) (Root, error)
		}{alice, s} {
			if _, err := v.Resolve(t.Context(), evil.ref("x:"+tag), nil); !errors.Is(err, sandpit.NotFound) {
				t.Errorf("%s: %v, want NotFound", tag, err)
			}
		}
	}
	// Neither while bob's layers are in the cache.
	for _, l := range secret.layers {
		must(t, os.WriteFile(s.cache.blobPath(honest.host()+"/bob/private", sha256Of(l)), l, 0o600))
	}
	if _, err := alice.Resolve(t.Context(), evil.ref("x:same"), nil); !errors.Is(err, sandpit.NotFound) {
		t.Errorf("with the layers in the cache: %v", err)
	}
	// A caller that sends all of it has shown to have it; it is in the cache once.
	evil.set(nil)
	again := resolved(t, alice, evil.ref("x:same"))
	if again.Path != image.Path {
		t.Errorf("the same image is at %s and %s", image.Path, again.Path)
	}
	got := evil.got("/blobs/")
	_ = resolved(t, alice, evil.ref("x:same"))
	_, err := s.Pull(t.Context(), string(evil.ref("x:same")), true, nil)
	must(t, err)
	for path, n := range evil.got("/blobs/") {
		if got[path] != n && !strings.HasSuffix(path, sha256Of(imageConfig(t, secret))) {
			t.Errorf("%s was asked for %d times, and %d times before", path, n, got[path])
		}
	}
	_ = resolved(t, bob, honest.ref("bob/private:v1"))
	if n := len(honest.got("/blobs/")); n != len(layers) {
		t.Errorf("the first registry was asked again")
	}
}

// TestOldCachesKnowTheirRepositories resolves what a version without records has fetched.
func TestOldCachesKnowTheirRepositories(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.push(t, "x", "v1", simple(t))
	s := newClientStore(t, Options{})
	_ = resolved(t, s, h.ref("x:v1"))
	files, err := filepath.Glob(filepath.Join(s.cache.dir, "*"+originSuffix))
	must(t, err)
	if len(files) > 0 {
		t.Errorf("a first fetch needs records: %v", files)
	}
	layers := h.got("/blobs/")
	root := resolved(t, s.For("alice"), h.ref("x:v1"))
	_, err = s.For("alice").Pull(t.Context(), string(h.ref("x:v1")), false, nil)
	must(t, err)
	must(t, root.File.Close())
	must(t, os.Remove(filepath.Join(s.cache.dir, nameFile(shared, mustReference(t, string(h.ref("x:v1")))))))
	_ = resolved(t, s.For("alice"), h.ref("x:v1"))
	for path, n := range h.got("/blobs/") {
		if n > layers[path]+1 || n > layers[path] && strings.HasSuffix(path, sha256Of(simple(t).layers[0])) {
			t.Errorf("%s was fetched %d times", path, n)
		}
	}
}

// TestSlowRegistryDelaysNobody has a registry send the layers of another one's image a
// byte at a time.
func TestSlowRegistryDelaysNobody(t *testing.T) {
	t.Parallel()
	honest, slow := newHub(t), newHub(t)
	image := parts{layers: [][]byte{incompressible(t, "data", 300<<10)}}
	other := parts{layers: image.layers, config: map[string]any{"User": "1"}}
	for _, h := range []*hubServer{honest, slow} {
		h.push(t, "x", "same", image)
		h.push(t, "x", "other", other)
	}
	var begun atomic.Int32
	slow.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, sha256Of(image.layers[0])) {
			return false
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(image.layers[0])))
		begun.Add(1)
		for _, b := range image.layers[0] {
			if _, err := w.Write([]byte{b}); err != nil {
				return true
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(50 * time.Millisecond):
			case <-r.Context().Done():
				return true
			}
		}
		return true
	})
	s := newClientStore(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for _, tag := range []string{"same", "other"} {
		go func() {
			_, err := s.For("alice").Resolve(ctx, slow.ref("x:"+tag), nil)
			ended <- err
		}()
	}
	for begun.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	start := time.Now()
	_ = resolved(t, s.For("bob"), honest.ref("x:same"))
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the honest registry's image took %s", took)
	}
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("alice's fetch ended with %v", err)
		}
	}
}

// TestOwnersShareADownload has two owners fetch the same repository at a time.
func TestOwnersShareADownload(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	image := simple(t)
	h.push(t, "x", "v1", image)
	release := make(chan struct{})
	h.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			<-release
		}
		return false
	})
	s := newClientStore(t, Options{})
	s.puller.timeouts.idle = time.Minute
	ended := make(chan error, 2)
	for _, owner := range []string{"alice", "bob"} {
		go func() {
			root, err := s.For(owner).Resolve(t.Context(), h.ref("x:v1"), nil)
			if err == nil {
				err = root.File.Close()
			}
			ended <- err
		}()
	}
	time.Sleep(100 * time.Millisecond)
	close(release)
	must(t, <-ended, <-ended)
	for _, l := range image.layers {
		for path, n := range h.got(sha256Of(l)) {
			if n != 1 {
				t.Errorf("%s was fetched %d times", path, n)
			}
		}
	}
}

func TestPullSettingHoldsForPulls(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.push(t, "x", "v1", versioned(t, "registry"))
	s := newClientStore(t, Options{Pull: PullNever})
	name := string(h.ref("x:v1"))
	imported := importVersion(t, s, "acme/tool:v1", "imported")
	for _, always := range []bool{false, true} {
		for who, pull := range map[string]func(context.Context, string, bool, Progress) (Entry, error){"admin": s.Pull, "alice": s.For("alice").Pull} {
			_, err := pull(t.Context(), name, always, nil)
			if code := sandpit.CodeOf(err); code != sandpit.NotFound && code != sandpit.PermissionDenied || !strings.Contains(err.Error(), "image.pull is never") {
				t.Errorf("%s, always %v: %v", who, always, err)
			}
		}
	}
	if _, err := s.Check(t.Context(), "acme/tool:v1"); !errors.Is(err, sandpit.PermissionDenied) {
		t.Errorf("check: %v", err)
	}
	if h.asked() > 0 {
		t.Errorf("the registry was asked %d times", h.asked())
	}
	if e, err := s.For("alice").Pull(t.Context(), "acme/tool:v1", false, nil); err != nil || e.ID != imported.ID {
		t.Errorf("what is here: %+v, %v", e, err)
	}
}

// TestImportedNamesAreNotReplaced asks registries for names that were imported.
func TestImportedNamesAreNotReplaced(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.push(t, "tool", "v1", versioned(t, "EVIL"))
	for _, policy := range []PullPolicy{PullMissing, PullAlways} {
		s := newClientStore(t, Options{Pull: policy, Sharing: &Sharing{OwnerSize: 1 << 40}})
		name := string(h.ref("tool:v1"))
		imported := importVersion(t, s, name, "imported")
		for who, pull := range map[string]func(context.Context, string, bool, Progress) (Entry, error){"admin": s.Pull, "alice": s.For("alice").Pull} {
			if _, err := pull(t.Context(), name, true, nil); !errors.Is(err, sandpit.Conflict) {
				t.Errorf("%s, %s: %v, want Conflict", policy, who, err)
			}
		}
		for _, v := range []View{s.For("alice"), s.For("bob")} {
			if got := version(t, v, sandpit.Image(name)); got != "imported" {
				t.Errorf("%s: %s gets %q", policy, v.owner, got)
			}
		}
		if got := version(t, s, sandpit.Image(name)); got != "imported" {
			t.Errorf("%s: the administrator gets %q", policy, got)
		}
		// Also when the image is lost: the name is not the registry's.
		must(t, os.Remove(s.cache.imagePath(imported.ID)))
		if _, err := s.For("bob").Resolve(t.Context(), sandpit.Image(name), nil); !errors.Is(err, sandpit.NotFound) {
			t.Errorf("%s: after it was lost: %v", policy, err)
		}
		if h.asked() > 0 {
			t.Errorf("%s: the registry was asked", policy)
		}
		_, err := s.Remove(t.Context(), name)
		must(t, err)
		if got := version(t, s.For("bob"), sandpit.Image(name)); got != "EVIL" {
			t.Errorf("%s: the administrator gave the name up, and bob gets %q", policy, got)
		}
		h.mu.Lock()
		h.counts = map[string]int{}
		h.mu.Unlock()
	}
}

func TestAlwaysOfAnOwner(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.push(t, "x", "v1", versioned(t, "1"))
	s := newClientStore(t, Options{})
	name := string(h.ref("x:v1"))
	_, err := s.Pull(t.Context(), name, false, nil)
	must(t, err)
	if _, err := s.For("alice").Pull(t.Context(), name, true, nil); err != nil {
		t.Errorf("the registry has the same: %v", err)
	}
	h.push(t, "x", "v1", versioned(t, "2"))
	_, err = s.For("alice").Pull(t.Context(), name, true, nil)
	if !errors.Is(err, sandpit.PermissionDenied) || !strings.Contains(sandpit.HintOf(err), h.host()+"/x@sha256:") {
		t.Errorf("another version for all owners: %v (hint %q)", err, sandpit.HintOf(err))
	}
	if got := version(t, s.For("bob"), sandpit.Image(name)); got != "1" {
		t.Errorf("bob gets %q", got)
	}
	own := string(h.ref("x:v2"))
	h.push(t, "x", "v2", versioned(t, "1"))
	_, err = s.For("alice").Pull(t.Context(), own, false, nil)
	must(t, err)
	h.push(t, "x", "v2", versioned(t, "3"))
	_, err = s.For("alice").Pull(t.Context(), own, true, nil)
	must(t, err)
	if got := version(t, s.For("alice"), sandpit.Image(own)); got != "3" {
		t.Errorf("alice's own name gives %q", got)
	}
}

// sharedStore is a store of a server with bounds.
func sharedStore(t *testing.T, size, own int64) *Store {
	t.Helper()
	return newClientStore(t, Options{CacheSize: size, Sharing: &Sharing{OwnerSize: own}})
}

func (s *Store) sizeOfAll(t *testing.T) int64 {
	t.Helper()
	entries, err := os.ReadDir(s.cache.dir)
	must(t, err)
	var sum int64
	for _, e := range entries {
		f, err := os.Open(filepath.Join(s.cache.dir, e.Name()))
		must(t, err)
		sum += sizeOnDisk(f)
		must(t, f.Close())
	}
	return sum
}

const testMiB = 1 << 20

// patterned is text that is packed to next to nothing, and takes space on the disk.
func patterned(size int) string { return string(bytes.Repeat([]byte("0123456789abcdef"), size/16)) }

func TestCacheSizeBoundsPulls(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	for i := range 4 {
		h.push(t, "x", strconv.Itoa(i), parts{layers: [][]byte{zipped(t, archiveOf(t, file(strconv.Itoa(i), patterned(3*testMiB))))}})
	}
	h.push(t, "x", "bomb", parts{layers: [][]byte{zipped(t, archiveOf(t, file("bomb", patterned(64*testMiB))))}})
	s := sharedStore(t, 8*testMiB, 0)
	alice := s.For("alice")
	imported := importVersion(t, s, "kept:1", patterned(2*testMiB))
	for i := range 4 {
		_ = must2(alice.Pull(t.Context(), string(h.ref("x:"+strconv.Itoa(i))), false, nil))(t)
		if size := s.sizeOfAll(t) - imported.Size; size > 8*testMiB {
			t.Errorf("after %d images the cache has %d bytes", i+1, size)
		}
	}
	_, err := alice.Pull(t.Context(), string(h.ref("x:bomb")), false, nil)
	if !errors.Is(err, sandpit.Exhausted) || !strings.Contains(sandpit.HintOf(err), "image.cache_size") {
		t.Errorf("a bomb: %v (hint %q)", err, sandpit.HintOf(err))
	}
	if _, err := s.Pull(t.Context(), string(h.ref("x:bomb")), false, nil); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("a bomb of the administrator's: %v", err)
	}
	if size := s.sizeOfAll(t) - imported.Size; size > 8*testMiB {
		t.Errorf("after the bomb the cache has %d bytes", size)
	}
	_ = resolved(t, s.For("bob"), "kept:1")

	// What sandboxes use stays, and what is left is all there is.
	for i := range 2 {
		_ = resolved(t, alice, h.ref("x:"+strconv.Itoa(i)))
	}
	if _, err := s.For("bob").Resolve(t.Context(), h.ref("x:2"), nil); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("all room is in use: %v", err)
	}
	if own, all := s.space.budget.Reserved("bob"); own != 0 || all != 0 {
		t.Errorf("%d of %d bytes stay reserved", own, all)
	}
}

// must2 returns a value unless there is an error.
func must2[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return v
	}
}

func TestOwnersHaveShares(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	for i := range 4 {
		h.push(t, "x", strconv.Itoa(i), parts{layers: [][]byte{zipped(t, archiveOf(t, file(strconv.Itoa(i), patterned(3*testMiB))))}})
	}
	s := sharedStore(t, 100*testMiB, 8*testMiB)
	alice, bob := s.For("alice"), s.For("bob")
	first := resolved(t, bob, h.ref("x:0")).ID
	aging := func() { // what was used before this is older
		list := must2(s.cache.listImages())(t)
		for _, e := range list {
			at := time.Now().Add(-time.Hour)
			must(t, os.Chtimes(s.cache.imagePath(e.ID), at, at))
		}
	}
	for i := range 4 {
		_ = must2(alice.Pull(t.Context(), string(h.ref("x:"+strconv.Itoa(i))), false, nil))(t)
		aging()
	}
	u := must2(s.space.measureUsage())(t)
	if u.owners["alice"] > 8*testMiB || u.owners["alice"] < 5*testMiB || u.owners["bob"] == 0 {
		t.Errorf("usage %v", u.owners)
	}
	if _, err := os.Stat(s.cache.imagePath(first)); err != nil {
		t.Errorf("bob's image went to make room for alice: %v", err)
	}
	// A step of a build counts, too.
	base := resolved(t, alice, h.ref("x:3"))
	step := must2(s.Extend(t.Context(), Extension{Base: sandpit.Image(base.ID), Key: "1", Owner: "alice"}, nil))(t)
	if u := must2(s.space.measureUsage())(t); u.owners["alice"] > 8*testMiB || u.owners["alice"] < step.Size {
		t.Errorf("usage with a step %v", u.owners)
	}
	hold := resolved(t, s, sandpit.Image(step.ID))
	if _, err := s.Extend(t.Context(), Extension{Base: sandpit.Image(step.ID), Key: "2", Owner: "alice"}, nil); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("a third copy: %v", err)
	}
	must(t, hold.File.Close())
	// What the administrator names belongs to no owner.
	_ = must2(s.Pull(t.Context(), string(h.ref("x:3")), false, nil))(t)
	if u := must2(s.space.measureUsage())(t); u.owners["alice"] != step.Size {
		t.Errorf("usage %v, want the step's %d", u.owners, step.Size)
	}
	if own, all := s.space.budget.Reserved("alice"); own != 0 || all != 0 {
		t.Errorf("%d of %d bytes stay reserved", own, all)
	}
}

func TestFullDiskRefusesPulls(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.push(t, "x", "v1", versioned(t, "1"))
	var free atomic.Int64
	disk := diskspace.NewDisk(diskspace.DiskOptions{
		MinFree: 100, Measure: func() (int64, int64, error) { return free.Load(), math.MaxInt64, nil },
	})
	s := newClientStore(t, Options{Sharing: &Sharing{Disk: disk}})
	if _, err := s.For("alice").Resolve(t.Context(), h.ref("x:v1"), nil); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("on a full disk: %v", err)
	}
	free.Store(1 << 40)
	id := resolved(t, s.For("alice"), h.ref("x:v1")).ID
	free.Store(0)
	_ = resolved(t, s.For("alice"), h.ref("x:v1"))
	if _, err := s.Remove(t.Context(), id); err != nil {
		t.Errorf("remove on a full disk: %v", err)
	}
}

func TestPullsTakeTurns(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.push(t, "x", "v1", versioned(t, "1"))
	h.push(t, "y", "v1", versioned(t, "1"))
	hold := make(chan struct{})
	var waiting atomic.Int32
	h.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/x/blobs/") {
			waiting.Add(1)
			<-hold
		}
		return false
	})
	pool := fairshare.NewPool(fairshare.Options{Name: "pulls", Total: 2, PerOwner: 1})
	s := newClientStore(t, Options{Sharing: &Sharing{Pulls: pool}})
	s.puller.timeouts.idle = time.Minute
	ended := make(chan error, 1)
	go func() {
		_, err := s.For("alice").Pull(t.Context(), string(h.ref("x:v1")), false, nil)
		ended <- err
	}()
	for waiting.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := s.For("alice").Pull(t.Context(), string(h.ref("y:v1")), false, nil); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("alice fetches more than her share: %v", err)
	}
	_ = resolved(t, s.For("bob"), h.ref("y:v1"))
	close(hold)
	must(t, <-ended)
	if own, all := pool.Used("alice"); own != 0 || all != 0 {
		t.Errorf("%d of %d places are taken at the end", own, all)
	}
}

func TestTheWaitForASlotIsBounded(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.push(t, "x", "v1", versioned(t, "1"))
	pool := fairshare.NewPool(fairshare.Options{Name: "pulls", Total: 1, PerOwner: 1, MaxWaiting: 1})
	taken := must2(pool.Acquire(t.Context(), "bob", 1))(t)
	defer taken.Release()
	s := newClientStore(t, Options{Sharing: &Sharing{Pulls: pool}, PullTimeout: 20 * time.Millisecond})
	if _, err := s.For("alice").Pull(t.Context(), string(h.ref("x:v1")), false, nil); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("got %v, want Exhausted", err)
	}
}

func TestNamesOfAnOwnerAreBounded(t *testing.T) {
	t.Parallel()
	s := newClientStore(t, Options{})
	for i := range 5 {
		r := mustReference(t, fmt.Sprintf("x:%d", i))
		must(t, s.cache.writeRecord(t.Context(), nameFile("alice", r), nameRecord{Name: r.String(), Owner: "alice", Key: strings.Repeat("0", 64)}))
		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		must(t, os.Chtimes(filepath.Join(s.cache.dir, nameFile("alice", r)), at, at))
	}
	r := mustReference(t, "x:0")
	must(t, s.cache.writeRecord(t.Context(), nameFile("bob", r), nameRecord{Name: r.String(), Owner: "bob", Key: strings.Repeat("0", 64)}))
	s.cache.limitRecords(ownPrefix("alice"), nameSuffix, 3)
	names := must2(s.names.list())(t)
	var left []string
	for _, p := range names[strings.Repeat("0", 64)] {
		left = append(left, p.Owner+" "+p.Name)
	}
	if len(left) != 3 || strings.Contains(strings.Join(left, ","), "alice docker.io/library/x:2") {
		t.Errorf("left: %q", left)
	}
}

func TestUnpackingIsOfLowPriority(t *testing.T) {
	t.Parallel()
	s := newClientStore(t, Options{Sharing: &Sharing{}})
	var nice int
	failure := errors.New("on purpose")
	err := s.builder.unpackWith(func() (err error) {
		nice, err = unix.Getpriority(unix.PRIO_PROCESS, 0)
		return errors.Join(err, failure)
	})
	if !errors.Is(err, failure) || 20-nice != workNice { // the kernel returns 20 - nice
		t.Errorf("work was done with nice %d (%v), want %d", 20-nice, err, workNice)
	}
	if err := s.builder.unpackWith(func() error { panic("on purpose") }); !errors.Is(err, sandpit.Internal) {
		t.Errorf("a panic: %v", err)
	}
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil || own == nice {
		t.Errorf("other threads have nice %d (%v)", 20-own, err)
	}
}
