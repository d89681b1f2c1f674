package outage_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// These make the test binary a program that makes and deletes sandboxes by a manager,
// with its state below one directory, until it is killed.
const (
	stateVariable = "SANDPIT_TEST_OUTAGE_STATE"
	hostVariable  = "SANDPIT_TEST_OUTAGE_HOST"
	imageVariable = "SANDPIT_TEST_OUTAGE_IMAGE"
	guestVariable = "SANDPIT_TEST_OUTAGE_GUEST"
)

// makers is how many sandboxes the program makes at the same time.
const makers = 2

// program is a manager with a Docker provider.
type program struct {
	manager  *manager.Manager
	state    *store.Store
	provider *docker.Provider
}

// openProgram opens the parts below a directory.
func openProgram(ctx context.Context, dir, host, guest string) (*program, error) {
	records := filepath.Join(dir, "docker")
	if err := os.MkdirAll(records, 0o700); err != nil {
		return nil, err
	}
	state, err := store.Open(ctx, filepath.Join(dir, "state"), store.Options{})
	if err != nil {
		return nil, err
	}
	p, err := docker.New(testoptions.Docker(docker.Options{
		Endpoint: docker.Endpoint{Host: host}, StateDir: records, Manager: state.Identity(), Guest: guest,
	}))
	if err != nil {
		return nil, errors.Join(err, state.Close())
	}
	m, err := manager.Open(ctx, testoptions.Manager(manager.Options{
		Store: state, Providers: map[string]sandpit.Provider{"docker": p}, Reconcile: time.Second, Retry: time.Second,
	}))
	if err != nil {
		return nil, errors.Join(err, p.Close(), state.Close())
	}
	return &program{m, state, p}, nil
}

func (p *program) close(ctx context.Context) error {
	return errors.Join(p.manager.Close(ctx), p.provider.Close(), p.state.Close())
}

// makeAndDelete makes sandboxes and deletes them, two at a time, until it is killed. It
// puts out a line for each that is made, "+" and its name, and "-" for each that it
// is about to delete.
func makeAndDelete(dir string) int {
	ctx := context.Background()
	p, err := openProgram(ctx, dir, os.Getenv(hostVariable), os.Getenv(guestVariable))
	if err != nil {
		fmt.Println("!", err)
		return 1
	}
	spec := sandpit.Spec{Image: sandpit.Image(os.Getenv(imageVariable))}
	fmt.Println("ready")
	failed := make(chan error)
	for range makers {
		go func() {
			for {
				s, err := p.manager.Create(ctx, manager.CreateRequest{Spec: spec})
				if err != nil {
					failed <- err
					return
				}
				fmt.Println("+", s.ID)
				time.Sleep(rand.N(300 * time.Millisecond))
				fmt.Println("-", s.ID)
				if err := p.manager.Delete(ctx, s.ID); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	fmt.Println("!", <-failed)
	return 1
}

// TestProcessKilled kills a program that makes and deletes sandboxes, at random
// moments. The next one has those that were made and not deleted, removes what was
// half made or half deleted, and nothing else stays.
func TestProcessKilled(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	dir := t.TempDir()
	image := rootFS(t)
	guest := testdocker.Guest(t)
	for range max(3, kills(t)/2) {
		kept := killed(t, d, dir, image, guest)
		p, err := openProgram(within(t), dir, d.host(), guest)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range kept {
			h, err := p.manager.Use(within(t), id)
			if err != nil {
				t.Errorf("a sandbox that was made is lost: %v", err)
				continue
			}
			if err := alive(within(t), h.Guest()); err != nil {
				t.Errorf("a sandbox that was made does not work: %v", err)
			}
			h.Release()
		}
		p.awaitSettled(t)
		for _, s := range p.manager.List(manager.Filter{}) {
			if err := p.manager.Delete(within(t), s.ID); err != nil {
				t.Errorf("delete: %v", err)
			}
		}
		if err := p.close(within(t)); err != nil {
			t.Error(err)
		}
		d.expectNothing(filepath.Join(dir, "docker"))
	}
}

func alive(ctx context.Context, g sandpit.Guest) error {
	p, err := g.Start(ctx, sandpit.Command{Args: []string{"true"}})
	if err != nil {
		return err
	}
	_, err = p.Wait(ctx)
	return err
}

// awaitSettled waits until the containers are those of the running sandboxes, and no
// sandbox is on its way elsewhere. These can be more than were announced, by one for
// each that makes them: between what is done and the line that tells of it the program
// may be killed.
func (p *program) awaitSettled(t *testing.T) {
	t.Helper()
	var containers, running []sandpit.ID
	for ctx := within(t); ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		list, err := p.provider.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		containers, running = nil, nil
		for _, c := range list {
			containers = append(containers, c.ID)
		}
		for _, s := range p.manager.List(manager.Filter{States: []sandpit.State{sandpit.StateRunning}}) {
			running = append(running, s.ID)
		}
		slices.Sort(containers)
		slices.Sort(running)
		if slices.Equal(containers, running) {
			if len(running) > makers {
				t.Errorf("%d sandboxes run, and %d were made at the same time", len(running), makers)
			}
			return
		}
	}
	t.Fatalf("the containers are those of %v, and the running sandboxes are %v", containers, running)
}

// killed runs the program, kills it, and returns which sandboxes it had made and was
// not deleting.
func killed(t *testing.T, d *daemon, dir string, image sandpit.Image, guest string) (kept []sandpit.ID) {
	t.Helper()
	cmd := exec.CommandContext(within(t), os.Args[0])
	cmd.Env = append(os.Environ(), stateVariable+"="+dir, hostVariable+"="+d.host(), imageVariable+"="+string(image), guestVariable+"="+guest)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	made := make(map[sandpit.ID]bool)
	var timer *time.Timer
	for lines := bufio.NewScanner(out); lines.Scan(); {
		what, id, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "ready":
			timer = time.AfterFunc(rand.N(2500*time.Millisecond), func() { _ = cmd.Process.Kill() }) // it may have ended
		case "+":
			made[sandpit.ID(id)] = true
		case "-":
			delete(made, sandpit.ID(id))
		default:
			t.Errorf("the program says: %s", lines.Text())
		}
	}
	_ = cmd.Wait() // it was killed
	if timer == nil {
		t.Fatal("the program did not start")
	}
	timer.Stop()
	for id := range made {
		kept = append(kept, id)
	}
	return kept
}
