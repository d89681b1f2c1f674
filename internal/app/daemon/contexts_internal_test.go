package daemon

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
	"github.com/sandpit-dev/sandpit/internal/files/tree"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// oneFile is a tar stream with a file.
func oneFile(t *testing.T, content string) []byte {
	t.Helper()
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	if err := w.WriteHeader(&tar.Header{Name: "file", Mode: 0o600, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return stream.Bytes()
}

// testSpace is room for so many bytes of each owner's builds.
func testSpace(perOwner int64) *diskspace.Budget {
	return newBuildFiles(config.Manager{MaxUploadBytes: perOwner, MaxUploadTotal: 1 << 40}, nil)
}

// TestContextBounds keeps as many bytes of an owner's builds as there may be, also while
// they come, and while they are used.
func TestContextBounds(t *testing.T) {
	t.Parallel()
	const each = tree.MemberBytes + 4
	c, err := openContexts(t.TempDir(), testSpace(2*each))
	if err != nil {
		t.Fatal(err)
	}
	put := func(owner string, id sandpit.BuildID) error {
		return c.Put(t.Context(), owner, id, bytes.NewReader(oneFile(t, "text")))
	}
	first, second, third := sandpit.NewBuildID(), sandpit.NewBuildID(), sandpit.NewBuildID()
	if err := errors.Join(put("ann", first), put("ann", second), put("ann", second)); err != nil {
		t.Fatal(err)
	}
	if err := put("ann", third); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("one more: %v", err)
	}
	if _, err := os.Stat(c.dirOf(third)); err == nil {
		t.Error("what was refused is there")
	}
	if err := put("bob", sandpit.NewBuildID()); err != nil {
		t.Errorf("another owner's: %v", err)
	}
	_, release, err := c.Take(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := put("ann", first); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("the same build while it runs: %v", err)
	}
	if err := put("ann", third); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("one more while the first is used: %v", err)
	}
	release()
	if err := put("ann", third); err != nil {
		t.Errorf("when there is room again: %v", err)
	}
	if own, all := c.space.Reserved("ann"); own != 2*each || all != 3*each {
		t.Errorf("%d of %d bytes are counted", own, all)
	}
}

// TestContextsGo removes the files of builds that were never started, were started, or
// whose template went while they came.
func TestContextsGo(t *testing.T) {
	t.Parallel()
	cfg, r, c := templateServer(t)
	dir := filepath.Join(cfg.StateDir, "contexts")
	expect := func(want int, when string) {
		t.Helper()
		if left, err := os.ReadDir(dir); err != nil || len(left) != want {
			t.Errorf("%s: files of %v, %v; want those of %d builds", when, left, err, want)
		}
	}
	create := func() wire.MadeTemplate {
		t.Helper()
		var made wire.MadeTemplate
		if err := json.Unmarshal([]byte(r.ask(http.MethodPost, "/v1/templates", `{"name":"web"}`, http.StatusAccepted)), &made); err != nil {
			t.Fatal(err)
		}
		return made
	}
	send := func(made wire.MadeTemplate, body io.Reader) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://sandpit/v1/builds/"+string(made.Build.ID)+"/files", body)
		if err != nil {
			t.Error(err)
			return 0
		}
		req.Header.Set("Content-Type", wire.ContentTypeContext)
		res, err := r.client.Do(req)
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	made := create()
	if code := send(made, bytes.NewReader(oneFile(t, "text"))); code != http.StatusNoContent {
		t.Fatalf("sent: %d", code)
	}
	expect(1, "sent")
	if code := send(made, bytes.NewReader([]byte("no archive"))); code != http.StatusBadRequest {
		t.Errorf("no archive: %d", code)
	}
	expect(0, "replaced by an invalid one")
	if code := send(made, bytes.NewReader(oneFile(t, "text"))); code != http.StatusNoContent {
		t.Fatalf("sent again: %d", code)
	}
	from, to := io.Pipe()
	second, answered := create(), make(chan int)
	go func() { answered <- send(second, from) }()
	stream := oneFile(t, "text")
	if _, err := to.Write(stream[:512]); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if there, err := os.ReadDir(dir); err != nil || len(there) == 2 {
			break
		}
	}
	expect(2, "while more come")
	if err := c.Templates.Delete(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	expect(1, "the template is removed")
	if _, err := to.Write(stream[512:]); err != nil {
		t.Fatal(err)
	}
	_ = to.Close()
	if code := <-answered; code != http.StatusNoContent {
		t.Errorf("what came meanwhile: %d", code)
	}
	expect(0, "all has come")
}
