package native

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

type healthOut struct {
	Body wire.Health
}

type versionOut struct {
	Body wire.Version
}

// The bounds of checks: everybody may ask for them.
const (
	checkTimeout  = 5 * time.Second
	checkInterval = time.Second // asking more often gets the last answer
)

// checker looks at what the server needs, at most so often.
type checker struct {
	list []Check

	mu      sync.Mutex // held while it looks: others wait for the same answer
	last    time.Time
	results []checkResult
}

// checkResult is what a look at one thing has shown.
type checkResult struct {
	Name   string
	OK     bool
	Reason string
}

// registerHealth adds the operations that need no key.
func (h *serverHandlers) registerHealth(r *registrar) {
	open := func(op huma.Operation) huma.Operation {
		op.Security, op.Tags = []map[string][]string{{}}, []string{"server"}
		return op
	}
	addOperation(r, open(newOperation(http.MethodGet, pathHealth, "getHealth", "See whether the server answers")),
		func(context.Context, *struct{}) (*healthOut, error) {
			return &healthOut{wire.Health{OK: true}}, nil
		})
	op := open(newOperation(http.MethodGet, pathReady, "getReadiness", "See whether the server can do its work"))
	op.Description = "503 if it cannot; the problem names what is missing."
	addOperation(r, op, func(ctx context.Context, _ *struct{}) (*healthOut, error) { return h.checks.reportHealth(ctx) })
	addOperation(r, open(newOperation(http.MethodGet, pathVersion, "getVersion", "See what the server is")),
		func(ctx context.Context, _ *struct{}) (*versionOut, error) {
			return &versionOut{h.visibleVersion(ctx)}, nil
		})
}

// visibleVersion returns what a client may know of the server.
func (h *serverHandlers) visibleVersion(ctx context.Context) wire.Version {
	v := h.version
	if p, err := api.PrincipalOf(ctx); err == nil && p.Admin && h.url != nil {
		v.URL = h.url()
	}
	return v
}

// answer says that all is well, or what is not. Why is for administrators.
func (c *checker) reportHealth(ctx context.Context) (*healthOut, error) {
	p, err := api.PrincipalOf(ctx)
	tell := err == nil && p.Admin
	checks := append(c.runChecks(ctx), checkDraining(ctx))
	var bad []string
	for _, check := range checks {
		switch {
		case check.OK:
		case tell:
			bad = append(bad, check.Name+" ("+check.Reason+")")
		default:
			bad = append(bad, check.Name)
		}
	}
	if len(bad) > 0 {
		return nil, sandpit.Errorf(sandpit.Unavailable, "the server cannot do its work for now: %s", strings.Join(bad, ", "))
	}
	out := &healthOut{Body: wire.Health{OK: true}}
	for _, check := range checks {
		out.Body.Checks = append(out.Body.Checks, wire.Check{Name: check.Name, OK: true})
	}
	return out, nil
}

// draining says whether the server goes on.
func checkDraining(ctx context.Context) checkResult {
	select {
	case <-api.Draining(ctx):
		return checkResult{Name: "server", Reason: api.ErrDraining.Error()}
	default:
		return checkResult{Name: "server", OK: true}
	}
}

// look asks all that the server needs at the same time.
func (c *checker) runChecks(ctx context.Context) []checkResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.last) < checkInterval {
		return slices.Clone(c.results)
	}
	// Whoever asked may give up; the answer is for others, too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	list := make([]checkResult, len(c.list))
	var asking sync.WaitGroup
	for i, check := range c.list {
		asking.Go(func() {
			list[i] = checkResult{Name: check.Name, OK: true}
			if err := check.Do(ctx); err != nil {
				list[i].OK, list[i].Reason = false, err.Error()
			}
		})
	}
	asking.Wait()
	c.last, c.results = time.Now(), list
	return slices.Clone(list)
}
