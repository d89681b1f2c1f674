package docker

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

// engine calls one docker engine for all parts of a Provider.
type engine struct {
	o     Options
	api   *client.Client
	calls *lifetime // of calls for a caller; ends with Close
	clean *lifetime // of removals; ends a little later
	wg    sync.WaitGroup

	noDisk  atomic.Bool // it cannot limit the disk
	factsMu sync.Mutex
	facts   *facts // nil until they are known

	mu      sync.Mutex
	noticed map[string]bool
	closed  bool
}

func newEngine(o Options) (*engine, error) {
	api, err := o.Endpoint.newClient()
	if err != nil {
		return nil, err
	}
	return &engine{o: o, api: api, calls: newLifetime(), clean: newLifetime(), noticed: make(map[string]bool)}, nil
}

// refuseCalls ends the calls under way and makes goDo refuse new work.
func (e *engine) refuseCalls() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.calls.endLifetime(errClosed)
}

// goDo runs f in a goroutine that Close waits for. It returns false if the provider is closed.
func (e *engine) goDo(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.wg.Go(f)
	return true
}

// callContext returns the context of one call of the engine.
func (e *engine) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return e.boundContext(ctx, e.calls, e.o.CallTimeout)
}

// cleanupContext returns a context for undoing a call, which may be canceled.
func (e *engine) cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return e.boundContext(context.WithoutCancel(ctx), e.clean, e.o.CallTimeout)
}

func (e *engine) boundContext(ctx context.Context, life *lifetime, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, free := life.bindContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, most)
	return ctx, func() {
		cancel()
		free()
	}
}

// noticeOnce reports a notice once.
func (e *engine) noticeOnce(text string) {
	e.mu.Lock()
	first := !e.noticed[text]
	e.noticed[text] = true
	e.mu.Unlock()
	if first && e.o.Notice != nil {
		e.o.Notice(text)
	}
}

// inspectContainer returns the engine's description of a container. NotFound: it does not exist.
func (e *engine) inspectContainer(ctx context.Context, id string) (container.InspectResponse, error) {
	limited, cancel := e.callContext(ctx)
	defer cancel()
	res, err := e.api.ContainerInspect(limited, id, client.ContainerInspectOptions{})
	if err == nil && (res.Container.State == nil || res.Container.Config == nil) {
		return res.Container, sandpit.Errorf(sandpit.Internal, "inspect the container: incomplete response of the engine")
	}
	return res.Container, e.wrapError(ctx, "inspect the container", err)
}

// removeUseless removes a container that is not needed, also after ctx ended.
func (e *engine) removeUseless(ctx context.Context, container string) error {
	clean, free := e.clean.bindContext(context.WithoutCancel(ctx))
	defer free()
	return e.removeContainer(clean, container)
}

// removeTries is how often an engine may fail to remove a container.
const removeTries = 10

// removeContainer removes a container and its anonymous volumes, and returns when they are gone. It
// also works after Close.
func (e *engine) removeContainer(ctx context.Context, container string) error {
	limited, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	for tries := 1; ; tries++ {
		_, err := e.api.ContainerRemove(limited, container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || isNotFound(err) {
			return nil
		}
		// A conflict means that another call removes it. Podman fails when the container ends at
		// that moment.
		if !cerrdefs.IsConflict(err) && (!cerrdefs.IsInternal(err) || tries == removeTries) {
			return e.wrapError(ctx, "remove the container", err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-limited.Done():
			return e.wrapError(ctx, "remove the container", err)
		}
	}
}

// readTime returns the engine's time, in Unix seconds.
func (e *engine) readTime(ctx context.Context) (string, error) {
	limited, cancel := e.callContext(ctx)
	defer cancel()
	info, err := e.api.Info(limited, client.InfoOptions{})
	if err != nil {
		return "", e.wrapError(ctx, "ask for the time", err)
	}
	now, err := time.Parse(time.RFC3339Nano, info.Info.SystemTime)
	if err != nil {
		now = time.Now()
	}
	return strconv.FormatInt(now.Unix(), 10), nil
}

// isResponding reports whether the engine answers within Options.Patience.
func (e *engine) isResponding(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, min(e.o.Patience, e.o.CallTimeout))
	defer cancel()
	_, err := e.api.Ping(limited, client.PingOptions{})
	return err == nil
}
