package daytona

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
	"github.com/sandpit-dev/sandpit/internal/reach/ownguest"
)

// launchTime bounds a script that starts the guest or looks at the sandbox.
const launchTime = time.Minute

// ensureGuest starts the guest of a running sandbox, unless it runs.
func (b *sandbox) ensureGuest(ctx context.Context, now box) error {
	b.guests.Lock()
	defer b.guests.Unlock()
	ctx = context.WithValue(ctx, startingKey{}, true)
	spec, err := specOf(now)
	if err != nil {
		return sandpit.Errorf(sandpit.Internal, "read the spec of sandbox %s: %w", b.id, err)
	}
	if tools := b.guestless(); tools != nil {
		return tools.prepare(ctx, spec)
	}
	account, err := b.readAccount(ctx)
	if err != nil {
		return err
	}
	settings := ownguest.Settings{
		Env: maps.Clone(now.Env), User: cmp.Or(spec.User, account.user), WorkDir: cmp.Or(spec.WorkDir, account.dir, sandpit.DefaultWorkDir),
	}
	_, err = ownguest.Start(liveness.Exempt(ctx), ownguest.Computer{
		WriteFile: func(ctx context.Context, path string, content io.Reader, _ int64) error {
			return b.upload(ctx, path, content)
		},
		Run:  b.runScript,
		HTTP: b.tunnel,
		Port: guestPort,
	}, settings)
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		return b.useToolbox(ctx, spec, err)
	}
	if err != nil {
		return err
	}
	if key := b.tunnel.key.Load(); key != nil {
		b.client.UseToken(*key)
	}
	return nil
}

// useToolbox uses the toolbox API from now on, because the guest cannot run in the sandbox.
func (b *sandbox) useToolbox(ctx context.Context, spec sandpit.Spec, why error) error {
	tools := newToolGuest(b)
	if err := tools.prepare(ctx, spec); err != nil {
		return errors.Join(why, err)
	}
	b.mu.Lock()
	b.tools = tools
	b.mu.Unlock()
	b.p.o.Log.WarnContext(ctx, "daytona: guest cannot run; the toolbox API replaces it", slog.String("sandbox", string(b.id)), slog.Any("error", why))
	return nil
}

// startingKey is the context key of calls that start the guest.
type startingKey struct{}

// isStarting reports whether a call is part of a start of the guest.
func isStarting(ctx context.Context) bool { return ctx.Value(startingKey{}) != nil }

// restartGuest starts the guest of a sandbox that runs without it.
func (b *sandbox) restartGuest(ctx context.Context) error {
	now, err := b.readBox(ctx)
	if err != nil {
		return err
	}
	return b.ensureGuest(ctx, now)
}

// runScript runs a script for package ownguest.
func (b *sandbox) runScript(ctx context.Context, script string) (ownguest.Result, error) {
	out, err := b.execute(ctx, script, launchTime)
	if err != nil {
		return ownguest.Result{}, fmt.Errorf("run a command in sandbox %s: %w", b.id, err)
	}
	r := ownguest.Result{Stdout: []byte(out.Result), Code: out.ExitCode}
	if out.ExitCode != 0 { // the toolbox merges the two outputs
		r.Stderr = r.Stdout
	}
	return r, nil
}

// account is the user of the toolbox and its working directory, which are those of the image.
type account struct{ user, dir string }

// readAccount returns the user of the toolbox and its working directory.
func (b *sandbox) readAccount(ctx context.Context) (account, error) {
	out, err := b.execute(ctx, "id -un 2>/dev/null || id -u; pwd", launchTime)
	if err != nil {
		return account{}, fmt.Errorf("look at sandbox %s: %w", b.id, err)
	}
	lines := strings.Split(strings.TrimSpace(out.Result), "\n")
	if out.ExitCode != 0 || len(lines) != 2 {
		return account{}, sandpit.Errorf(sandpit.Unsupported, "look at sandbox %s: its image has no usable shell: %s", b.id, cleanText(out.Result))
	}
	a := account{user: strings.TrimSpace(lines[0]), dir: strings.TrimSpace(lines[1])}
	if !path.IsAbs(a.dir) {
		a.dir = ""
	}
	return a, nil
}
