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

// The limits of health checks, which need no key.
const (
	checkTimeout  = 5 * time.Second
	checkInterval = time.Second // more frequent requests get the last results
)

// checker runs health checks, at most once in each checkInterval.
type checker struct {
	list []Check

	mu      sync.Mutex // held during the checks: other requests wait for the same results
	last    time.Time
	results []checkResult
}

// checkResult is the result of one check.
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
	addOperation(r, open(newOperation(http.MethodGet, pathHealth, "getHealth", "Report whether the server responds")),
		func(context.Context, *struct{}) (*healthOut, error) {
			return &healthOut{wire.Health{OK: true}}, nil
		})
	op := open(newOperation(http.MethodGet, pathReady, "getReadiness", "Report whether the server is ready"))
	op.Description = "503 if it is not; the problem names the failed checks."
	addOperation(r, op, func(ctx context.Context, _ *struct{}) (*healthOut, error) { return h.checks.reportHealth(ctx) })
	addOperation(r, open(newOperation(http.MethodGet, pathVersion, "getVersion", "Get the versions of the server")),
		func(ctx context.Context, _ *struct{}) (*versionOut, error) {
			return &versionOut{h.visibleVersion(ctx)}, nil
		})
}

// visibleVersion returns what the client may know about the server.
func (h *serverHandlers) visibleVersion(ctx context.Context) wire.Version {
	v := h.version
	if p, err := api.PrincipalOf(ctx); err == nil && p.Admin && h.url != nil {
		v.URL = h.url()
	}
	return v
}

// reportHealth runs the checks. Unavailable: some failed; only administrators get the reasons.
func (c *checker) reportHealth(ctx context.Context) (*healthOut, error) {
	p, err := api.PrincipalOf(ctx)
	isAdmin := err == nil && p.Admin
	checks := append(c.runChecks(ctx), checkDraining(ctx))
	var bad []string
	for _, check := range checks {
		switch {
		case check.OK:
		case isAdmin:
			bad = append(bad, check.Name+" ("+check.Reason+")")
		default:
			bad = append(bad, check.Name)
		}
	}
	if len(bad) > 0 {
		return nil, sandpit.Errorf(sandpit.Unavailable, "the server is not ready: %s", strings.Join(bad, ", "))
	}
	out := &healthOut{Body: wire.Health{OK: true}}
	for _, check := range checks {
		out.Body.Checks = append(out.Body.Checks, wire.Check{Name: check.Name, OK: true})
	}
	return out, nil
}

// checkDraining reports whether the server is shutting down.
func checkDraining(ctx context.Context) checkResult {
	select {
	case <-api.Draining(ctx):
		return checkResult{Name: "server", Reason: api.ErrDraining.Error()}
	default:
		return checkResult{Name: "server", OK: true}
	}
}

// runChecks runs all checks at the same time.
func (c *checker) runChecks(ctx context.Context) []checkResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.last) < checkInterval {
		return slices.Clone(c.results)
	}
	// The results are for other requests, too, even if this client disconnects.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	list := make([]checkResult, len(c.list))
	var running sync.WaitGroup
	for i, check := range c.list {
		running.Go(func() {
			list[i] = checkResult{Name: check.Name, OK: true}
			if err := check.Do(ctx); err != nil {
				list[i].OK, list[i].Reason = false, err.Error()
			}
		})
	}
	running.Wait()
	c.last, c.results = time.Now(), list
	return slices.Clone(list)
}
