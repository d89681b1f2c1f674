package gvisor_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// operation is something in the middle of which a process is killed.
type operation struct {
	from string // how the sandbox is before: running, suspended, stopped, archived or ended
	do   func(context.Context, killTask, *gvisor.Provider, sandpit.Instance) error
	// memory says that programs go on: they are lost only with a kernel.
	memory bool
	// snapshot says that there has to be one before.
	snapshot bool
	// apart says that neither engine nor kernel has to do with it.
	apart bool
}

// operations are all that move a sandbox's files or memory.
func operations() map[string]operation {
	with := func(do func(context.Context, sandpit.Instance) error) func(context.Context, killTask, *gvisor.Provider, sandpit.Instance) error {
		return func(ctx context.Context, _ killTask, _ *gvisor.Provider, box sandpit.Instance) error {
			return do(ctx, box)
		}
	}
	return map[string]operation{
		"suspend": {from: "running", memory: true, do: with(func(ctx context.Context, box sandpit.Instance) error {
			return box.(sandpit.Suspender).Suspend(ctx)
		})},
		"resume": {from: "suspended", memory: true, do: with(func(ctx context.Context, box sandpit.Instance) error {
			return box.(sandpit.Pauser).Resume(ctx)
		})},
		"upgrade": {from: "suspended", memory: true, do: func(ctx context.Context, _ killTask, p *gvisor.Provider, _ sandpit.Instance) error {
			list, err := p.UpgradeState(ctx)
			for _, u := range list {
				err = errors.Join(err, u.Err)
			}
			return err
		}},
		"stop": {from: "running", do: with(func(ctx context.Context, box sandpit.Instance) error {
			return box.(sandpit.Stopper).Stop(ctx)
		})},
		"start": {from: "stopped", do: with(func(ctx context.Context, box sandpit.Instance) error {
			return box.(sandpit.Stopper).Start(ctx)
		})},
		"archive": {from: "stopped", apart: true, do: with(func(ctx context.Context, box sandpit.Instance) error {
			return box.(sandpit.Archiver).Archive(ctx)
		})},
		"restore": {from: "archived", apart: true, do: with(func(ctx context.Context, box sandpit.Instance) error {
			return box.(sandpit.Archiver).Restore(ctx)
		})},
		"checkpoint": {from: "running", memory: true, do: with(func(ctx context.Context, box sandpit.Instance) error {
			return box.(sandpit.Checkpointer).Checkpoint(ctx)
		})},
		"revive": {from: "ended", do: with(func(ctx context.Context, box sandpit.Instance) error {
			_, err := box.(sandpit.Reviver).Revive(ctx)
			return err
		})},
		"snapshot": {from: "running", memory: true, do: func(ctx context.Context, k killTask, _ *gvisor.Provider, box sandpit.Instance) error {
			_, err := box.(sandpit.Snapshotter).Snapshot(ctx, k.Other)
			return err
		}},
		"fork": {from: "running", memory: true, snapshot: true, do: func(ctx context.Context, k killTask, p *gvisor.Provider, _ sandpit.Instance) error {
			_, err := p.Create(ctx, k.Fork, sandpit.Spec{Image: sandpit.SnapshotImage(k.Snapshot)})
			return err
		}},
		"rollback": {from: "running", memory: true, snapshot: true, do: func(ctx context.Context, k killTask, _ *gvisor.Provider, box sandpit.Instance) error {
			return box.(sandpit.Rollbacker).Rollback(ctx, k.Snapshot)
		}},
		"export": {from: "running", memory: true, snapshot: true, apart: true, do: exportTask},
		"import": {from: "running", memory: true, snapshot: true, apart: true, do: importTask},
	}
}

func exportTask(ctx context.Context, k killTask, p *gvisor.Provider, _ sandpit.Instance) error {
	to, err := os.Create(k.exported())
	if err != nil {
		return err
	}
	return errors.Join(p.ExportSnapshot(ctx, k.Snapshot, to), to.Close())
}

func importTask(ctx context.Context, k killTask, p *gvisor.Provider, _ sandpit.Instance) error {
	from, err := os.Open(k.exported())
	if err != nil {
		return err
	}
	defer from.Close()
	_, err = p.ImportSnapshot(ctx, k.Other, from)
	return err
}

// killTask is the task of the process that is killed.
type killTask struct {
	Dir, Operation  string
	Handle          []byte
	Snapshot, Other sandpit.SnapshotID // one there is, and one there may be
	Fork            sandpit.ID
}

func (k killTask) exported() string { return filepath.Join(k.Dir, "exported.tar") }

// killTaskVariable has TestKilledProcess do what it says.
const killTaskVariable = "SANDPIT_TEST_KILL_TASK"

// TestKilledProcess is not a test by itself: it is the process that
// TestOperationsSurviveKills kills.
func TestKilledProcess(t *testing.T) {
	text := os.Getenv(killTaskVariable)
	if text == "" {
		t.Skip("only run by another test")
	}
	var k killTask
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		t.Fatal(err)
	}
	p := newProviderWith(t, k.Dir, lasting)
	box, err := p.Attach(t.Context(), k.Handle)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(os.Stderr, "begin")
	err = operations()[k.Operation].do(t.Context(), k, p, box)
	fmt.Fprintf(os.Stderr, "end %v\n", err)
	time.Sleep(time.Hour) // until it is killed; an endless wait alone may end the program as a deadlock
}

// TestOperationsSurviveKills kills, in the middle of everything that moves a sandbox, the
// process that does it, the engine, or the sandbox's kernel. The sandbox is then what it
// was or what it was to be, and if its kernel was lost while it ran, it begins with its
// checkpoint. SANDPIT_TEST_OPERATION_KILLS says how often each of them is killed in each
// operation; without it, some are, once.
func TestOperationsSurviveKills(t *testing.T) {
	t.Parallel()
	rounds := times(t, "SANDPIT_TEST_OPERATION_KILLS", 0)
	type attempt struct{ operation, victim string }
	var all []attempt
	for name, o := range operations() {
		all = append(all, attempt{name, "process"})
		if !o.apart {
			all = append(all, attempt{name, "engine"}, attempt{name, "kernel"})
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if rounds == 0 {
		all = all[:3]
	}
	w := newKillWorld(t)
	found := make(map[string]int)
	for round := range max(rounds, 1) {
		for _, a := range all {
			// The first kills are spread over the operation, the others come at random.
			part := (float64(round) + rand.Float64()) / float64(max(rounds, 1))
			what := a.operation + ", " + a.victim + " killed"
			w.doing = what
			found[what+": "+w.try(a.operation, a.victim, part)]++
			if t.Failed() {
				t.Fatal(what)
			}
		}
	}
	var lines []string
	for how, n := range found {
		lines = append(lines, fmt.Sprintf("%s %d", how, n))
	}
	slices.Sort(lines)
	t.Logf("%d kills; found afterwards:\n%s", len(all)*max(rounds, 1), strings.Join(lines, "\n"))
	w.expectNothing()
}

// run starts the process, and kills the victim after part of the time that the operation
// usually takes. It returns what the process said at last, "" if it was killed before.
func (w *killWorld) run(k killTask, id sandpit.ID, victim string, part float64) (said string) {
	w.t.Helper()
	text, err := json.Marshal(k)
	if err != nil {
		w.t.Fatal(err)
	}
	process := exec.CommandContext(w.t.Context(), os.Args[0], "-test.run=^TestKilledProcess$")
	process.Env = append(os.Environ(), killTaskVariable+"="+string(text))
	stderr, err := process.StderrPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		w.t.Fatal(err)
	}
	began, usual := time.Time{}, w.usual(k.Operation)
	killed := make(chan struct{})
	var words []string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		words = append(words, lines.Text())
		switch end, isEnd := strings.CutPrefix(lines.Text(), "end "); {
		case lines.Text() == "begin":
			began = time.Now()
			go func() {
				defer close(killed)
				time.Sleep(time.Duration(part * float64(usual)))
				w.kill(victim, process, id)
			}()
		case isEnd:
			said = end
			if end == "<nil>" {
				w.took[k.Operation] = time.Since(began)
			}
			<-killed
			_ = process.Process.Kill()
		}
	}
	_ = process.Wait() // it was killed
	if began.IsZero() {
		w.t.Fatalf("%s did not begin: %s", k.Operation, strings.Join(words, "\n"))
	}
	<-killed
	return said
}

// kill kills a victim; a kernel or engine that is not there yet is waited for.
func (w *killWorld) kill(victim string, process *exec.Cmd, id sandpit.ID) {
	for range 200 {
		switch {
		case victim == "process":
			_ = process.Process.Kill()
			return
		case victim == "engine" && w.killEngines() || victim == "kernel" && killKernelOf(id):
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
