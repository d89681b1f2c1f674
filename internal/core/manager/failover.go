package manager

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// failover sends a request for a sandbox to one provider after another until one has created it.
// Each attempt has a row of its own, and what a failed one may have left is removed through it: a
// request never has two sandboxes.
type failover struct {
	circuits *circuits
	log      *slog.Logger
	o        *Options
	wall     *wallClock
	// create creates the sandbox with the provider that the request names.
	create func(context.Context, CreateRequest, time.Time) (sandpit.Sandbox, error)
}

// refusal is a provider that did not create a sandbox, and why.
type refusal struct {
	provider string
	err      error
	attempt  sandpit.ID // "": the provider was not asked, or refused before
}

// createSandbox creates a sandbox with the first provider that can.
func (fo *failover) createSandbox(ctx context.Context, r CreateRequest, now time.Time) (sandpit.Sandbox, error) {
	names, err := fo.findProviders(r.Provider)
	if err != nil {
		return sandpit.Sandbox{}, err
	}
	if r.ID != "" {
		names = names[:1] // the next attempt needs another ID, because what the first has left is removed by its own
	}
	if len(names) > 1 {
		r.asked = strings.Join(names, ",")
	}
	begin := time.Now()
	for round := 0; ; round++ {
		s, refusals, err := fo.tryAll(ctx, r, names, now, begin)
		if err == nil || len(refusals) == 0 {
			return s, err
		}
		if round == retryRounds {
			return s, joinRefusals(refusals)
		}
		wait, again := fo.planRetry(refusals)
		if len(again) == 0 {
			return s, joinRefusals(refusals)
		}
		if sleep(ctx, wait) != nil {
			return s, context.Cause(ctx)
		}
		names = again
		for _, one := range refusals {
			r.failed = append(r.failed, one.attempt)
		}
	}
}

// tryAll tries providers in order. Those whose circuits are open come last. now was the time of day at
// begin, when the request arrived. An error without refusals is one that no other provider can help
// with.
func (fo *failover) tryAll(
	ctx context.Context, r CreateRequest, names []string, now, begin time.Time,
) (s sandpit.Sandbox, refusals []refusal, err error) {
	var skipped []refusal
	for forced := false; ; forced = true {
		for i, name := range names {
			trial, err := fo.circuits.admit(name, forced || len(names) == 1)
			if err != nil {
				skipped = append(skipped, refusal{provider: name, err: err})
				continue
			}
			r.movesOn, r.Provider, r.reason = i < len(names)-1, name, describeRefusals(name, slices.Concat(skipped, refusals))
			s, err = fo.tryProvider(ctx, r, now, time.Since(begin))
			fo.circuits.record(name, trial, fo.blameOf(r, err))
			if err == nil || !isProviderError(err) || ctx.Err() != nil {
				return s, nil, err
			}
			refusals = append(refusals, refusal{name, err, s.ID})
			r.failed = append(slices.Clip(r.failed), s.ID)
			fo.reportRefusal(ctx, r, refusals[len(refusals)-1])
		}
		if forced || len(skipped) == 0 {
			return s, slices.Concat(refusals, skipped), errNothingToDo
		}
		names = names[:0:0]
		for _, one := range skipped {
			names = append(names, one.provider)
		}
		skipped = nil
	}
}

// tryProvider has the provider of a request create the sandbox. The time that earlier attempts took
// does not count for the lease.
func (fo *failover) tryProvider(ctx context.Context, r CreateRequest, now time.Time, took time.Duration) (sandpit.Sandbox, error) {
	if took >= time.Second {
		later, err := fo.wall.now(ctx)
		if err != nil {
			return sandpit.Sandbox{}, err
		}
		if !r.Lease.Deadline.IsZero() {
			r.Lease.Deadline = queue.Millis(r.Lease.Deadline.Add(later.Sub(now)))
		}
		now = later
	}
	s, err := fo.create(ctx, r, now)
	return s, addSubject(err, sandpit.Subject{Provider: r.Provider})
}

// blameOf returns the error of a request for the circuit of its provider: no error of the provider if
// the client has allowed it less time than the server does.
func (fo *failover) blameOf(r CreateRequest, err error) error {
	if r.Timeout > 0 && r.Timeout < fo.o.createTimeout(r.Provider) && sandpit.CodeOf(err) == sandpit.Timeout {
		return errNothingToDo
	}
	return err
}

// findProviders returns the providers of a request in the order of its preference: those that it
// names, separated by commas, or the server's.
//
// Unsupported: one of them does not exist. Invalid: a list with an empty name.
func (fo *failover) findProviders(text string) ([]string, error) {
	if text == "" {
		return append([]string{fo.o.Provider}, fo.o.Fallbacks...), nil
	}
	var names []string
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			return nil, sandpit.Errorf(sandpit.Invalid, "providers %.100q: an empty name", text)
		}
		if fo.o.Providers[name] == nil {
			return nil, fo.o.unknownProvider(name)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// unknownProvider returns the error for a provider that does not exist.
func (o *Options) unknownProvider(name string) error {
	return sandpit.Errorf(sandpit.Unsupported, "Unsupported provider type: %.100q. Available providers: %s",
		name, strings.Join(slices.Sorted(maps.Keys(o.Providers)), ", "))
}

// namesProvider reports whether a request for a provider, or for one of several, may use one of this
// name.
func namesProvider(text, name string) bool {
	if text == "" {
		return true
	}
	for one := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(one) == name {
			return true
		}
	}
	return false
}

// isProviderError reports whether an error was caused by the provider and another one may have none:
// it is full, cannot be reached, does not answer, does not accept the server's key, does not have the
// image or template, or cannot do what the request asks for.
func isProviderError(err error) bool {
	if _, ok := errors.AsType[providerError](err); !ok {
		return false
	}
	switch sandpit.CodeOf(err) {
	case sandpit.Exhausted, sandpit.Unavailable, sandpit.Timeout, sandpit.Unsupported, sandpit.Internal, sandpit.Unauthenticated, sandpit.NotFound:
		return true
	default:
		return false
	}
}

// reportRefusal logs and counts a provider that did not create a sandbox.
func (fo *failover) reportRefusal(ctx context.Context, r CreateRequest, one refusal) {
	if r.asked == "" {
		return // the caller gets the error
	}
	fo.o.Observer.PassedOn(one.provider, one.err)
	level := slog.LevelWarn
	if code := sandpit.CodeOf(one.err); code == sandpit.Exhausted || code == sandpit.Unsupported { // as configured
		level = slog.LevelInfo
	}
	fo.log.Log(ctx, level, "manager: provider did not create a sandbox", slog.String("provider", one.provider), slog.Any("error", one.err))
}

// describeRefusals returns why a provider was used that is not the first choice, or "".
func describeRefusals(name string, before []refusal) string {
	if len(before) == 0 {
		return ""
	}
	return cutText("created by provider "+name+"; "+listRefusals(before), store.MaxReason)
}

func listRefusals(list []refusal) string {
	texts := make([]string, len(list))
	for i, one := range list {
		texts[i] = one.provider + ": " + strings.ReplaceAll(one.err.Error(), "\n", ": ")
	}
	return strings.Join(texts, "; ")
}

// joinRefusals returns the error of a request that no provider fulfilled. It is retryable if one of
// the providers may fulfill it later.
func joinRefusals(list []refusal) error {
	if len(list) == 1 {
		return list[0].err
	}
	code, after, retry := sandpit.CodeOf(list[0].err), time.Duration(0), false
	for _, one := range list {
		if sandpit.CodeOf(one.err) != code {
			code = sandpit.Unavailable
		}
		retry = retry || sandpit.Retryable(one.err)
		if d := sandpit.RetryAfterOf(one.err); d > 0 && (after == 0 || d < after) {
			after = d
		}
	}
	err := sandpit.WithHint(sandpit.Errorf(code, "no provider created the sandbox: %s", listRefusals(list)), "see: sandpit providers")
	if retry || after > 0 {
		err = sandpit.WithRetry(err, after)
	}
	return err
}

// planRetry returns which providers to try again, and when: those that have said that they can do it
// soon, while there are tokens.
func (fo *failover) planRetry(list []refusal) (wait time.Duration, names []string) {
	for _, one := range list {
		after := sandpit.RetryAfterOf(one.err)
		if after > 0 && after <= retryWait && sandpit.Retryable(one.err) && fo.circuits.takeRetry(one.provider) {
			wait, names = max(wait, after), append(names, one.provider)
		}
	}
	return wait, names
}
