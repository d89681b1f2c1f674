package owners_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// tryBuild has a party build a template from a recipe, and returns how the build ended.
func (p party) tryBuild(t *testing.T, name string, start map[string]any) (status, message, id string) {
	t.Helper()
	var made struct {
		Build struct {
			ID string `json:"id"`
		} `json:"build"`
	}
	p.must(t, http.MethodPost, "/v1/templates", map[string]any{"name": name}).decode(t, &made)
	if r := p.call(t, http.MethodPost, "/v1/builds/"+made.Build.ID, start); r.status >= 300 {
		return "refused", string(r.body), made.Build.ID
	}
	for end := time.Now().Add(callTimeout); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var b struct {
			Status string `json:"status"`
			Reason struct {
				Message string `json:"message"`
			} `json:"reason"`
		}
		p.must(t, http.MethodGet, "/v1/builds/"+made.Build.ID, nil).decode(t, &b)
		if b.Status == "ready" || b.Status == "failed" {
			return b.Status, b.Reason.Message, made.Build.ID
		}
	}
	t.Fatalf("%s: the build of %s does not end", p.name, name)
	return "", "", ""
}

// built is tryBuild of a recipe of shell commands that has to succeed.
func (p party) built(t *testing.T, name, from string, commands ...string) (id string) {
	t.Helper()
	status, message, id := p.tryBuild(t, name, map[string]any{"recipe": recipeOf(from, commands...)})
	if status != "ready" {
		t.Fatalf("%s: the build of %s is %s: %s", p.name, name, status, message)
	}
	return id
}

func recipeOf(from string, commands ...string) map[string]any {
	steps := []any{}
	for _, c := range commands {
		steps = append(steps, map[string]any{"run": []string{"/bin/sh", "-c", c}})
	}
	return map[string]any{"from": from, "steps": steps}
}

// images returns the server's images that a party can list, by their IDs.
func (p party) images(t *testing.T) map[string]string {
	t.Helper()
	var page struct {
		Items []struct{ ID, Name, Kind string } `json:"items"`
	}
	p.must(t, http.MethodGet, "/v1/images", nil).decode(t, &page)
	list := make(map[string]string)
	for _, i := range page.Items {
		list[i.ID] = i.Kind + " " + i.Name
	}
	return list
}

// tryCreate asks for a sandbox of an image, and returns its ID if there is one.
func (p party) tryCreate(t *testing.T, image string) (response, string) {
	t.Helper()
	r := p.call(t, http.MethodPost, "/v1/sandboxes", map[string]any{"spec": map[string]any{"image": image}})
	var s struct {
		ID string `json:"id"`
	}
	if r.status < 300 {
		r.decode(t, &s)
	}
	return r, s.ID
}

// pull has the server fetch an image, and returns the end of what it says.
func (p party) pull(t *testing.T, image string, always bool) string {
	t.Helper()
	r := p.call(t, http.MethodPost, "/v1/images/pull", map[string]any{"name": image, "always": always})
	return fmt.Sprint(r.status, " ", string(r.body))
}

// reads runs a command in a new sandbox of an image and returns its output.
func (p party) reads(t *testing.T, image, command string) string {
	t.Helper()
	id := p.create(t, image)
	defer p.call(t, http.MethodDelete, "/v1/sandboxes/"+id, nil)
	out, _ := p.run(t, id, command)
	return strings.TrimSpace(out)
}

// TestImagesOfOthersByID has alice use every ID that the server's cache has: of a private
// template of bob's, of its steps, and of a directory that an administrator has used.
func TestImagesOfOthersByID(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{})
	l.bob.built(t, "private", l.image, "echo BOB-PRIVATE > /proprietary.txt", "echo more > /more.txt")
	dir := filepath.Join(l.dir, "of-the-machine")
	unpack(t, busyboxTar(t), dir)
	if err := os.WriteFile(filepath.Join(dir, "admin.txt"), []byte("ADMIN-ONLY"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := l.socket.reads(t, dir, "cat /admin.txt"); got != "ADMIN-ONLY" {
		t.Fatalf("the administrator reads %q", got)
	}
	shared := l.alice.images(t)
	for id, what := range shared {
		if !strings.HasSuffix(what, " "+l.image) {
			t.Errorf("alice sees image %s (%s)", id, what)
		}
	}
	unknown := strings.Repeat("0", 64)
	missing, _ := l.alice.tryCreate(t, unknown)
	_, missingBase, _ := l.alice.tryBuild(t, "base", map[string]any{"recipe": recipeOf(unknown, "true")})
	tried := 0
	for id, what := range l.admin.images(t) {
		if shared[id] != "" && strings.HasSuffix(what, " "+l.image) {
			continue
		}
		tried++
		r, box := l.alice.tryCreate(t, id)
		if box != "" {
			out, _ := l.alice.run(t, box, "cat /proprietary.txt /admin.txt")
			t.Errorf("alice has a sandbox of image %s (%s): %s", id, what, out)
		}
		if r.status != missing.status || withoutRequest(r, id) != withoutRequest(missing, unknown) {
			t.Errorf("image %s (%s): %d %s\nan unknown one: %d %s", id, what, r.status, r.body, missing.status, missing.body)
		}
		status, message, _ := l.alice.tryBuild(t, "base", map[string]any{"recipe": recipeOf(id, "true")})
		if status == "ready" || strings.ReplaceAll(message, id, unknown) != missingBase {
			t.Errorf("a build from image %s (%s): %s %q\nfrom an unknown one: %q", id, what, status, message, missingBase)
		}
	}
	if tried < 3 {
		t.Errorf("only %d images of others were tried", tried)
	}
	if r, _ := l.bob.tryCreate(t, "template:private"); r.status >= 300 {
		t.Errorf("bob cannot use his own template: %s", r.body)
	}
}

// withoutRequest is the body of an error without what differs each time.
func withoutRequest(r response, name string) string {
	var parts []string
	for line := range strings.SplitSeq(strings.ReplaceAll(string(r.body), name, "NAME"), ",") {
		if !strings.Contains(line, "request") {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, ",")
}

// unpack unpacks an archive into a new directory that all users may read.
func unpack(t *testing.T, archive, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	runProgram(t, "tar", "-C", dir, "-xf", archive)
}

// TestPullPolicyHolds has alice fetch where no registry may be asked.
func TestPullPolicyHolds(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: registriesInside + "pull = \"never\"\n"})
	var asked atomic.Int32
	g := newRegistry(t)
	name := g.push(t, "x", "v1", busyboxLayer(t))
	g.answer(func(http.ResponseWriter, *http.Request) bool { asked.Add(1); return false })
	for _, always := range []bool{false, true} {
		if got := l.alice.pull(t, name, always); strings.Contains(got, `"result"`) || strings.Contains(got, "event: result") || !strings.Contains(got, "image.pull") {
			t.Errorf("pull, always %v: %s", always, got)
		}
	}
	if _, id := l.alice.tryCreate(t, name); id != "" {
		t.Error("alice has a sandbox of an image that may not be fetched")
	}
	if status, message, _ := l.alice.tryBuild(t, "x", map[string]any{"recipe": recipeOf(name, "true")}); status == "ready" {
		t.Errorf("a build from it: %s %s", status, message)
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the registry was asked %d times", n)
	}
}

// TestNobodyReplacesAName has alice fetch a name anew that the administrator has imported,
// and one that bob has fetched.
func TestNobodyReplacesAName(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"missing", "always"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, labOptions{config: registriesInside + "pull = \"" + policy + "\"\n"})
			g, base := newRegistry(t), busyboxLayer(t)
			imported := g.push(t, "acme/tool", "v1", base, layerOf(t, map[string]string{"who": "EVIL"}))
			dir := filepath.Join(l.dir, "imported")
			unpack(t, busyboxTar(t), dir)
			if err := os.WriteFile(filepath.Join(dir, "who"), []byte("ADMIN"), 0o644); err != nil {
				t.Fatal(err)
			}
			l.command(t, "image", "import", dir, "--name", imported)
			for _, always := range []bool{true, false} {
				l.alice.pull(t, imported, always)
				if got := l.bob.reads(t, imported, "cat /who"); got != "ADMIN" {
					t.Errorf("after alice's pull (always %v) bob's sandbox of the imported name has %q", always, got)
				}
			}
			fetched := g.push(t, "tool", "v1", base, layerOf(t, map[string]string{"who": "first"}))
			if got := l.bob.reads(t, fetched, "cat /who"); got != "first" {
				t.Fatalf("bob reads %q", got)
			}
			g.push(t, "tool", "v1", base, layerOf(t, map[string]string{"who": "second"}))
			l.alice.pull(t, fetched, true)
			want := map[string]string{"missing": "first", "always": "second"}[policy]
			if got := l.bob.reads(t, fetched, "cat /who"); got != want {
				t.Errorf("after alice's pull bob's sandbox has %q, want %q", got, want)
			}
		})
	}
}

// TestClaimedContentIsNotGiven has alice's registry claim to have what only bob's has: an
// image by its manifest, and layers by their digests. Nothing of bob's is given to her.
func TestClaimedContentIsNotGiven(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: registriesInside})
	honest, evil, base := newRegistry(t), newRegistry(t), busyboxLayer(t)
	secret := layerOf(t, map[string]string{"secret.txt": "BOB-PRIVATE"})
	late := layerOf(t, map[string]string{"late": "x"})
	private := honest.push(t, "bob/private", "v1", base, secret)
	if got := l.bob.reads(t, private, "cat /secret.txt"); got != "BOB-PRIVATE" {
		t.Fatalf("bob reads %q", got)
	}
	claimed := map[string]string{
		"the manifest": evil.push(t, "x", "same", base, secret),
		"the layer":    evil.push(t, "x", "other", base, secret, layerOf(t, map[string]string{"more": "x"})),
	}
	evil.forget("x", secret)
	for what, name := range claimed {
		if r, id := l.alice.tryCreate(t, name); id != "" {
			out, _ := l.alice.run(t, id, "cat /secret.txt")
			t.Errorf("a caller that claims %s gets a sandbox: %s", what, out)
		} else if r.status != http.StatusNotFound {
			t.Errorf("a caller that claims %s: %d %s", what, r.status, r.body)
		}
	}
	// Neither while bob's layers are on their way.
	begun := make(chan struct{})
	var once sync.Once
	slow := honest.push(t, "bob/slow", "v1", base, secret, late)
	honest.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, digestOf(late)) {
			return false
		}
		once.Do(func() { close(begun) })
		trickle(w, r, late)
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = l.bob.do(ctx, http.MethodPost, "/v1/images/pull", map[string]any{"name": slow}, nil) // it is given up
	}()
	<-begun
	time.Sleep(200 * time.Millisecond) // the other layers are there
	if _, id := l.alice.tryCreate(t, claimed["the layer"]); id != "" {
		t.Error("a caller that claims a layer that is being fetched gets a sandbox")
	}
	cancel()
	<-ended
}

// TestSlowRegistryDelaysNobody has alice's registry send a layer of bob's image a byte at
// a time, while bob fetches it from an honest registry.
func TestSlowRegistryDelaysNobody(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: registriesInside})
	honest, slow, base := newRegistry(t), newRegistry(t), busyboxLayer(t)
	image := honest.push(t, "x", "v1", base)
	same := slow.push(t, "x", "same", base)
	other := slow.push(t, "x", "other", base, layerOf(t, map[string]string{"more": "x"}))
	var begun atomic.Int32
	slow.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, digestOf(base)) {
			return false
		}
		begun.Add(1)
		trickle(w, r, base)
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for _, name := range []string{same, other} {
		group.Go(func() {
			_, _ = l.alice.do(ctx, http.MethodPost, "/v1/images/pull", map[string]any{"name": name}, nil) // it is given up
		})
	}
	for begun.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	limited, end := context.WithTimeout(t.Context(), 20*time.Second)
	start := time.Now()
	r, err := l.bob.do(limited, http.MethodPost, "/v1/images/pull", map[string]any{"name": image}, nil)
	end()
	if err != nil || !strings.Contains(string(r.body), "result") || time.Since(start) > 10*time.Second {
		t.Errorf("bob's image of another registry took %s: %v %s", time.Since(start), err, r.body)
	}
	cancel()
	group.Wait()
}

// TestSlowPullsDelayNoCreation has alice ask for more sandboxes than are made at a time, of
// a registry that never comes to an end.
func TestSlowPullsDelayNoCreation(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: registriesInside})
	slow, base := newRegistry(t), busyboxLayer(t)
	slow.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") {
			trickle(w, r, bytes.Repeat([]byte(" "), 1<<20))
			return true
		}
		return false
	})
	name := slow.push(t, "x", "v", base)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for i := range 12 {
		group.Go(func() {
			spec := map[string]any{"image": fmt.Sprint(name, i)}
			// It is given up.
			_, _ = l.alice.do(ctx, http.MethodPost, "/v1/sandboxes", map[string]any{"spec": spec, "create_timeout_seconds": 600}, nil)
		})
	}
	group.Go(func() {
		spec := map[string]any{"image": name, "name": "again"}
		_, _ = l.alice.do(ctx, http.MethodPost, "/v1/sandboxes", map[string]any{"spec": spec, "policy": map[string]any{"recreate": 3}}, nil)
	})
	time.Sleep(time.Second)
	limited, end := context.WithTimeout(t.Context(), 20*time.Second)
	start := time.Now()
	r, err := l.bob.do(limited, http.MethodPost, "/v1/sandboxes", map[string]any{"spec": map[string]any{"image": l.image}}, nil)
	if err != nil || r.status != http.StatusCreated {
		t.Errorf("bob's sandbox, after %s: %v %s", time.Since(start), err, r.body)
	}
	honest := newRegistry(t)
	fetched := honest.push(t, "x", "v1", base)
	r, err = l.bob.do(limited, http.MethodPost, "/v1/sandboxes", map[string]any{"spec": map[string]any{"image": fetched}}, nil)
	if err != nil || r.status != http.StatusCreated {
		t.Errorf("bob's sandbox of an image that is fetched, after %s: %v %s", time.Since(start), err, r.body)
	}
	end()
	cancel()
	group.Wait()
}

// TestPullsFitIntoTheCache fetches images that are packed to next to nothing, and a bomb.
func TestPullsFitIntoTheCache(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	l := newLab(t, labOptions{config: registriesInside + "cache_size = \"64m\"\n"})
	g := newRegistry(t)
	before := sizeBelow(t, filepath.Join(l.dir, "cache"))
	for i := range 2 {
		text := strings.Repeat(fmt.Sprintf("%015d\n", i), 40*mib/16)
		l.alice.pull(t, g.push(t, "x", strconv.Itoa(i), layerOf(t, map[string]string{"data": text})), false)
	}
	got := l.alice.pull(t, g.push(t, "x", "bomb", layerOf(t, map[string]string{"data": strings.Repeat("0123456789abcdef", 300*mib/16)})), false)
	if !strings.Contains(got, "exhausted") || !strings.Contains(got, "image.cache_size") {
		t.Errorf("a bomb: %s", got)
	}
	if grown := sizeBelow(t, filepath.Join(l.dir, "cache")) - before; grown > 64*mib {
		t.Errorf("the cache has grown by %d MiB, and may have 64", grown/mib)
	}
	if got := l.bob.reads(t, l.image, "echo works"); got != "works" {
		t.Errorf("bob's sandbox of an imported image says %q", got)
	}
}

// sizeBelow is how many bytes on disk a directory has.
func sizeBelow(t *testing.T, dir string) int64 {
	t.Helper()
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += blocksOf(info)
		}
		return nil // what is gone has no size
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
