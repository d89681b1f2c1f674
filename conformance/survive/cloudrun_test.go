package survive_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// cloudRun is what clients do with sandboxes of a cloud.
type cloudRun struct {
	*world

	cloud *cloud
	c     *client.Client
	made  atomic.Int64 // operations that have ended

	mu   sync.Mutex
	done map[string]int // operations by kind and code
	keys map[string]sandpit.ID
}

func newCloudRun(w *world, c *cloud) *cloudRun {
	run := &cloudRun{world: w, cloud: c, c: w.client("http://" + w.address), done: make(map[string]int), keys: make(map[string]sandpit.ID)}
	w.t.Cleanup(run.c.Close)
	return run
}

// work has clients make operations while the server is killed. It returns when there were enough of both.
func (r *cloudRun) work(operations, kills int) (killed int) {
	r.t.Helper()
	const clients = 4
	var enough atomic.Bool
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			one := &cloudClient{cloudRun: r}
			for !enough.Load() {
				one.step()
			}
			one.finish()
		})
	}
	for killed < kills || r.made.Load() < int64(operations) {
		time.Sleep(time.Second + mathrand.N(3*time.Second))
		if killed < kills {
			r.kill()
			r.cloud.checkEnds()
			r.start()
			killed++
		}
	}
	enough.Store(true)
	group.Wait()
	return killed
}

func (r *cloudRun) total() int { return int(r.made.Load()) }

// count records an operation, and checks its error.
func (r *cloudRun) count(kind string, err error) {
	r.made.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.done[kind]++
		return
	}
	if isLost(err) {
		r.made.Add(-1)
		r.done[kind+" without an answer"]++
		return
	}
	r.done[kind+" "+string(sandpit.CodeOf(err))]++
	if missing := describeMissing(err); len(missing) > 0 {
		r.t.Errorf("%s: the error names no %q: %v", kind, missing, err)
	}
	switch sandpit.CodeOf(err) {
	case sandpit.Unavailable, sandpit.Timeout, sandpit.Exhausted, sandpit.Conflict: // a fault, or its result
	default:
		r.t.Errorf("%s: %v (%s)", kind, err, sandpit.CodeOf(err))
	}
	if strings.Contains(err.Error(), r.cloud.key) {
		r.t.Errorf("%s: the error contains the key of the cloud", kind)
	}
}

// isLost reports whether an error is the client's own, because the server was killed.
func isLost(err error) bool { return err != nil && sandpit.RequestIDOf(err) == "" }

// list returns the sandboxes of the server.
func (r *cloudRun) list() map[sandpit.ID]sandpit.State {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), patience)
	defer cancel()
	all, err := r.c.Sandboxes.List(ctx, client.Filter{})
	if err != nil {
		r.t.Errorf("list: %v", err)
	}
	states := make(map[sandpit.ID]sandpit.State, len(all))
	for _, one := range all {
		states[one.ID] = one.State
	}
	return states
}

// deleteRest deletes the sandboxes that clients could not delete.
func (r *cloudRun) deleteRest() {
	for id := range r.list() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), patience)
		if err := r.c.Sandboxes.Delete(ctx, id); err != nil && sandpit.CodeOf(err) != sandpit.NotFound {
			r.t.Errorf("delete %s: %v", id, err)
		}
		cancel()
	}
}

// cloudClient works with one sandbox at a time.
type cloudClient struct {
	*cloudRun

	box     *client.Sandbox
	written map[string]bool // tokens of commands, and whether they certainly ran
}

// step makes one operation.
func (o *cloudClient) step() {
	ctx, cancel := context.WithTimeout(o.t.Context(), 2*patience)
	defer cancel()
	if o.box == nil {
		o.create(ctx)
		return
	}
	switch n := mathrand.IntN(20); {
	case n < 9:
		o.run(ctx)
	case n < 11:
		o.count("pause", o.c.Sandboxes.Suspend(ctx, o.box.ID))
		o.count("resume", o.c.Sandboxes.Resume(ctx, o.box.ID))
	case n < 13:
		o.count("stop", o.c.Sandboxes.Stop(ctx, o.box.ID))
		o.count("start", o.c.Sandboxes.Start(ctx, o.box.ID))
	case n < 16:
		_, err := o.c.Sandboxes.Get(ctx, o.box.ID)
		o.count("get", err)
	default:
		o.delete(ctx)
	}
}

// create creates a sandbox, at times by two requests with the same key.
func (o *cloudClient) create(ctx context.Context) {
	key := rand.Text()
	times := 1 + mathrand.IntN(2)
	var group sync.WaitGroup
	for range times {
		group.Go(func() {
			box, err := o.c.Sandboxes.Create(ctx, client.CreateRequest{}, client.WithIdempotencyKey(key))
			for isLost(err) && ctx.Err() == nil { // the same request again: it must not have a second sandbox
				time.Sleep(100 * time.Millisecond)
				box, err = o.c.Sandboxes.Create(ctx, client.CreateRequest{}, client.WithIdempotencyKey(key))
			}
			o.count("create", err)
			if err != nil {
				return
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			if earlier := o.keys[key]; earlier != "" && earlier != box.ID {
				o.t.Errorf("one request has created %s and %s", earlier, box.ID)
			}
			o.keys[key], o.box = box.ID, box
		})
	}
	group.Wait()
	o.written = make(map[string]bool)
}

// run appends a token to a file.
func (o *cloudClient) run(ctx context.Context) {
	token := strings.ToLower(rand.Text())
	status, err := o.box.Exec(ctx, sandpit.Command{ID: token, Args: []string{"sh", "-c", "echo " + token + " >>/log"}})
	if err == nil && status.Code != 0 {
		err = fmt.Errorf("exit status %s", status)
	}
	o.count("run", err)
	o.written[token] = err == nil
}

// delete checks what ran, and deletes the sandbox.
func (o *cloudClient) delete(ctx context.Context) {
	o.check(ctx)
	o.count("delete", o.c.Sandboxes.Delete(ctx, o.box.ID))
	o.box = nil
}

// check compares the file with the commands: none ran twice, and those without an error ran.
func (o *cloudClient) check(ctx context.Context) {
	var text bytes.Buffer
	if _, err := o.box.Exec(ctx, sandpit.Command{Args: []string{"sh", "-c", "touch /log; cat /log"}, Stdout: &text}); err != nil {
		o.count("read", err)
		return
	}
	for token, certain := range o.written {
		n := strings.Count("\n"+text.String(), "\n"+token+"\n")
		if n > 1 || certain && n == 0 {
			o.t.Errorf("sandbox %s: command %s ran %d times; it returned without an error: %t", o.box.ID, token, n, certain)
		}
	}
}

func (o *cloudClient) finish() {
	if o.box == nil {
		return
	}
	ctx, cancel := context.WithTimeout(o.t.Context(), 2*patience)
	defer cancel()
	o.delete(ctx)
}
