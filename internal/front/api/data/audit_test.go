package data_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// trail returns the next events of a sandbox about commands and files, as one line each.
func (r *rig) trail(t *testing.T, id sandpit.ID, after *int64, n int) (lines []string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		lines = nil
		list, err := r.store.Events().ListEvents(t.Context(), store.EventFilter{Sandbox: id, After: *after, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		last := *after
		for _, e := range list {
			last = e.Seq
			if e.Action == "create" || e.Actor != "alice" {
				continue
			}
			delete(e.Args, "pid")
			delete(e.Args, "calls") // whether what comes at the same moment is one event depends on the moment
			if e.Action == "read file" && e.Args["bytes"] == "0" {
				continue // a file is opened once more than it is read
			}
			if e.Action == "read directory" && e.Args["bytes"] != "0" {
				e.Args["bytes"] = "some"
			}
			if len(e.Args["sha256"]) == 64 {
				e.Args["sha256"] = e.Args["sha256"][:8]
			}
			words := []string{e.Action, e.Result}
			for _, name := range slices.Sorted(maps.Keys(e.Args)) {
				words = append(words, name+"="+e.Args[name])
			}
			lines = append(lines, strings.Join(words, " "))
		}
		if len(lines) >= n || time.Now().After(deadline) {
			*after = last
			return lines
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestAudit: whatever starts a program or touches files by these calls is in the trail of
// events, with a digest in place of arguments.
func TestAudit(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	dir := t.TempDir()
	var after int64
	const secret = "echo the-secret"
	shell := "args=2 program=/bin/sh sha256=" + sandpit.DigestArgs([]string{"/bin/sh", "-c", secret})[:8]
	post := func(path string, body any) func() {
		return func() { r.do(r.client, http.MethodPost, id, path, asJSON(t, body)) }
	}
	envelope := func(text string) io.Reader {
		b := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text)))
		return bytes.NewReader(append(b, text...))
	}
	for _, tc := range []struct {
		name string
		do   func()
		want []string
	}{
		{"run", post("/run", wire.Run{Command: secret}), []string{"run command ok " + shell}},
		{"run in the background", post("/run", wire.Run{Command: secret, Detach: true}), []string{"run command ok " + shell}},
		{"run as events", func() {
			req := r.request(t.Context(), http.MethodPost, id, "/run", asJSON(t, wire.Run{Command: secret}))
			req.Header.Set("Accept", "text/event-stream")
			r.send(r.client, req)
		}, []string{"run command ok " + shell}},
		{"run nothing", post("/run", wire.Run{Args: []string{"/nowhere"}}), []string{
			"run command not_found args=0 program=/nowhere sha256=" + sandpit.DigestArgs([]string{"/nowhere"})[:8],
		}},
		{"the guest's protocol", func() {
			req := r.request(t.Context(), http.MethodPost, id, "/envd/process.Process/Start", envelope(`{"process":{"cmd":"/bin/sh","args":["-c","`+secret+`"]}}`))
			req.Header.Set("Content-Type", "application/connect+json")
			r.send(r.client, req)
		}, []string{"run command ok " + shell}},
		{"write", func() {
			r.do(r.client, http.MethodPut, id, "/files"+query("path", dir+"/f"), strings.NewReader("content"))
		}, []string{"write file ok bytes=7 direction=in path=" + dir + "/f"}},
		{"read", func() {
			r.do(r.client, http.MethodGet, id, "/files"+query("path", dir+"/f"), nil)
		}, []string{"read file ok bytes=7 direction=out path=" + dir + "/f"}},
		{"move", post("/files/move", wire.Move{From: dir + "/f", To: dir + "/g"}), []string{"move file ok path=" + dir + "/f to=" + dir + "/g"}},
		{"make", post("/files/mkdir", wire.MakeDir{Path: dir + "/d"}), []string{"make directory ok path=" + dir + "/d"}},
		{"remove", func() {
			r.do(r.client, http.MethodDelete, id, "/files"+query("path", dir+"/d"), nil)
		}, []string{"remove file ok path=" + dir + "/d"}},
		{"read tree", func() {
			r.do(r.client, http.MethodGet, id, "/tree"+query("path", dir), nil)
		}, []string{"read directory ok bytes=some direction=out path=" + dir}},
	} {
		tc.do()
		if diff := cmp.Diff(tc.want, r.trail(t, id, &after, len(tc.want))); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tc.name, diff)
		}
	}
	// A session's shell is a command, and so is each that it reads.
	var session wire.Session
	r.do(r.client, http.MethodPost, id, "/sessions", asJSON(t, map[string]any{})).want(t, http.StatusCreated, &session)
	r.do(r.client, http.MethodPost, id, "/sessions/"+session.ID+"/run", asJSON(t, map[string]any{"command": secret}))
	lines := r.trail(t, id, &after, 2)
	found := slices.ContainsFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "run command ok args=2") && (strings.Contains(l, sandpit.DigestArgs([]string{"bash", "-c", secret})[:8]) ||
			strings.Contains(l, sandpit.DigestArgs([]string{"sh", "-c", secret})[:8]))
	})
	if !found {
		t.Errorf("a session's command is not among %q", lines)
	}
	if all, err := r.store.Events().ListEvents(t.Context(), store.EventFilter{}); err != nil || strings.Contains(cmp.Diff(nil, all), "the-secret") {
		t.Errorf("%v, or an argument is in the trail", err)
	}
}

// TestAuditOfPieces: a file that is read in many pieces is not as many events.
func TestAuditOfPieces(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	name := t.TempDir() + "/f"
	r.do(r.client, http.MethodPut, id, "/files"+query("path", name), strings.NewReader(strings.Repeat("x", 1000)))
	const pieces = 200
	for range pieces {
		req := r.request(t.Context(), http.MethodGet, id, "/files"+query("path", name), nil)
		req.Header.Set("Range", "bytes=0-9")
		r.send(r.client, req)
	}
	eventually(t, "all pieces are reported", func() bool {
		list, err := r.store.Events().ListEvents(t.Context(), store.EventFilter{Sandbox: id, Action: "read file", Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		sum, calls := 0, 0
		for _, e := range list {
			sum += atoi(t, e.Args["bytes"])
			if e.Args["calls"] == "" {
				calls++
			} else {
				calls += atoi(t, e.Args["calls"])
			}
		}
		if len(list) > pieces/2 {
			t.Fatalf("%d events", len(list))
		}
		return sum == 10*pieces && calls == pieces
	})
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
