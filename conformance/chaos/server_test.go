package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/files/archive"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// dirVariable has TestServer serve from the directory it names, with so many
// sandboxes at most.
const (
	dirVariable = "SANDPIT_TEST_CHAOS_DIR"
	maxVariable = "SANDPIT_TEST_CHAOS_MAX"
)

const (
	providerName = "gvisor"
	engineName   = "engine" // a copy, so that its processes can be told from others
	socketName   = "socket"
	answer       = 30 * time.Second // how long a call may take
)

// call is what a client asks of the server, on a connection of its own.
type call struct {
	Op  string     `json:"op"`
	ID  sandpit.ID `json:"id,omitempty"`
	Key string     `json:"key,omitempty"`
	// Command runs in a shell inside.
	Command string `json:"command,omitempty"`
	// Deadline is in milliseconds from now.
	Deadline int `json:"deadline,omitempty"`
	// Image is what is made. Default: the machine's.
	Image sandpit.Image `json:"image,omitempty"`
	// Snapshot is what is made again, or removed.
	Snapshot sandpit.SnapshotID `json:"snapshot,omitempty"`
}

type result struct {
	Code      sandpit.Code      `json:"code,omitempty"` // of the error, if there was one
	Error     string            `json:"error,omitempty"`
	Sandbox   sandpit.Sandbox   `json:"sandbox,omitzero"`
	Sandboxes []sandpit.Sandbox `json:"sandboxes,omitempty"`
	Placed    []sandpit.ID      `json:"placed,omitempty"`

	Snapshots []sandpit.SnapshotID `json:"snapshots,omitempty"`

	Output string `json:"output,omitempty"`
	Pool   int    `json:"pool,omitempty"` // how many wait
}

// server is what is killed.
type server struct {
	manager  *manager.Manager
	provider sandpit.Provider
}

// TestServer is not a test by itself: it is the process that the others kill.
func TestServer(t *testing.T) {
	dir := os.Getenv(dirVariable)
	if dir == "" {
		t.Skip("only run by another test")
	}
	if err := serve(t.Context(), dir); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, dir string) error {
	state, err := store.Open(ctx, filepath.Join(dir, "state"), store.Options{})
	if err != nil {
		return err
	}
	images, err := image.Open(filepath.Join(dir, "images"), image.Options{})
	if err != nil {
		return err
	}
	cold, err := archive.OpenDir(filepath.Join(dir, "archive"))
	if err != nil {
		return err
	}
	s := &server{}
	if s.provider, err = gvisor.New(gvisor.Config{
		RuntimeDir: filepath.Join(dir, "run"), ScratchDir: filepath.Join(dir, "scratch"), KeepDir: filepath.Join(dir, "stopped"),
		SnapshotDir: filepath.Join(dir, "snapshots"), SuspendDir: filepath.Join(dir, "suspended"), Archive: cold,
		Images: images, Engine: filepath.Join(dir, engineName), Lasting: true, Defaults: testengine.Limits(),
	}); err != nil {
		return err
	}
	if s.manager, err = manager.Open(ctx, testoptions.Manager(manager.Options{
		Store: state, Providers: map[string]sandpit.Provider{providerName: s.provider},
		Pools:        []manager.Pool{{Size: 2}},
		MaxSandboxes: number(maxVariable, 0), Reconcile: 2 * time.Second, Retry: time.Second, Drain: time.Second,
	})); err != nil {
		return err
	}
	socket := filepath.Join(dir, socketName)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	for {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			var c call
			if err := json.NewDecoder(conn).Decode(&c); err != nil {
				return
			}
			ctx, cancel := context.WithTimeout(ctx, answer)
			defer cancel()
			r, err := s.answer(ctx, c)
			if err != nil {
				r.Code, r.Error = sandpit.CodeOf(err), err.Error()
			}
			_ = json.NewEncoder(conn).Encode(r)
		}()
	}
}

func (s *server) answer(ctx context.Context, c call) (r result, err error) {
	if do := s.verb(c.Op); do != nil {
		return r, do(ctx, c.ID)
	}
	switch c.Op {
	case "create":
		if c.Snapshot != "" {
			r.Sandbox, err = s.manager.Create(ctx, manager.CreateRequest{Owner: "chaos", Spec: sandpit.Spec{Image: sandpit.SnapshotImage(c.Snapshot)}})
			break
		}
		r.Sandbox, err = s.manager.Create(ctx, manager.CreateRequest{
			Owner: "chaos", Key: c.Key, Lease: lease(c.Deadline),
			Spec: sandpit.Spec{Image: c.Image, Labels: map[string]string{"key": c.Key}},
			Setup: func(ctx context.Context, i sandpit.Instance, _ sandpit.Spec) error {
				_, err := run(ctx, i.Guest(), "echo "+c.Key+" > /workspace/key")
				return err
			},
		})
	case "run":
		r.Output, err = s.run(ctx, c)
	case "get":
		r.Sandbox, err = s.manager.Get(c.ID)
	case "list":
		r.Sandboxes = s.manager.List(manager.Filter{})
	case "placed":
		var list []sandpit.Placement
		list, err = s.provider.List(ctx)
		for _, p := range list {
			r.Placed = append(r.Placed, p.ID)
		}
	case "pool":
		p := s.manager.Pools().List()[0]
		if r.Pool = p.Ready; p.Making > 0 || p.Ready < p.Size {
			err = sandpit.Errorf(sandpit.Unavailable, "the pool is being filled")
		}
	case "deadline":
		err = s.manager.SetDeadline(ctx, c.ID, lease(c.Deadline))
	case "labels":
		err = s.manager.SetLabels(ctx, c.ID, map[string]string{"key": c.Key, "changed": "yes"})
	case "rollback":
		err = s.manager.Snapshots().RollBack(ctx, c.ID, string(c.Snapshot))
	case "export":
		err = s.manager.Snapshots().Export(ctx, "chaos", string(c.Snapshot), io.Discard)
	case "unsave":
		err = s.manager.Snapshots().Delete(ctx, "chaos", string(c.Snapshot))
	case "saved", "snapshot", "fork":
		return s.copies(ctx, c)
	case "close":
		err = s.manager.Close(ctx)
	default:
		err = sandpit.Errorf(sandpit.Invalid, "no operation %q", c.Op)
	}
	return r, err
}

// verb is what is done with a sandbox and has no answer but an error.
func (s *server) verb(op string) func(context.Context, sandpit.ID) error {
	m := s.manager
	return map[string]func(context.Context, sandpit.ID) error{
		"pause": m.Pause, "suspend": m.Suspend, "resume": m.Resume, "stop": m.Stop, "start": m.Start,
		"archive": m.Archive, "restore": m.Restore, "checkpoint": m.Checkpoint, "delete": m.Delete,
	}[op]
}

// copies makes snapshots and copies, and lists snapshots.
func (s *server) copies(ctx context.Context, c call) (r result, err error) {
	list := make([]sandpit.Snapshot, 1)
	switch c.Op {
	case "snapshot":
		list[0], err = s.manager.Snapshots().Create(ctx, c.ID, "")
	case "fork":
		r.Sandboxes, err = s.manager.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: c.ID})
		return r, err
	default:
		list, err = s.manager.Snapshots().List(ctx, store.SnapshotFilter{Owner: "chaos"})
	}
	for _, snap := range list {
		r.Snapshots = append(r.Snapshots, snap.ID)
	}
	return r, err
}

func lease(ms int) sandpit.Lease {
	if ms == 0 {
		return sandpit.Lease{}
	}
	return sandpit.Lease{Deadline: time.Now().Add(time.Duration(ms) * time.Millisecond), Action: sandpit.ActionKill}
}

func (s *server) run(ctx context.Context, c call) (string, error) {
	h, err := s.manager.Use(ctx, c.ID)
	if err != nil {
		return "", err
	}
	defer h.Release()
	out, err := run(h.Context(), h.Guest(), c.Command)
	if err != nil && h.Context().Err() != nil {
		err = context.Cause(h.Context()) // it was taken from us
	}
	return out, err
}

func run(ctx context.Context, g sandpit.Guest, command string) (string, error) {
	w, err := workspace.New(g, workspace.Options{})
	if err != nil {
		return "", err
	}
	r, err := w.Run(ctx, sandpit.Command{Args: []string{"sh", "-c", command}})
	if err == nil && r.ExitCode != 0 {
		err = sandpit.Errorf(sandpit.Internal, "%s: exit status %d: %s", command, r.ExitCode, r.Stderr)
	}
	return r.Stdout, err
}
