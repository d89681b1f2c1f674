package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// managed is sandpit with a manager and a pool, as a server uses it.
type managed struct {
	manager  *manager.Manager
	state    *store.Store
	provider *gvisor.Provider
	spec     sandpit.Spec
}

// poolSize is the size of the pool.
const poolSize = 2

func (k *kit) openManaged(ctx context.Context) (m *managed, err error) {
	m = &managed{spec: sandpit.Spec{Image: sandpit.Image(k.root.path)}}
	dir := filepath.Join(k.dir, "managed")
	if m.provider, err = openProvider(dir, k.images(), k.engine); err != nil {
		return nil, withHint(err)
	}
	if m.state, err = store.Open(ctx, filepath.Join(dir, "state"), store.Options{}); err != nil {
		return nil, errors.Join(err, m.provider.Close())
	}
	m.manager, err = manager.Open(ctx, testoptions.Manager(manager.Options{
		Store: m.state, Providers: map[string]sandpit.Provider{"gvisor": m.provider},
		Pools: []manager.Pool{{Spec: m.spec, Size: poolSize, Warm: manager.WarmUp}},
	}))
	if err != nil {
		return nil, errors.Join(err, m.state.Close(), m.provider.Close())
	}
	return m, nil
}

func (m *managed) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	return errors.Join(m.manager.Close(ctx), m.state.Close(), m.provider.Close())
}

func (m *managed) contestant() contestant {
	return contestant{name: bySandpitPool, life: m.life, runsOnly: true}
}

// life claims a sandbox from a full pool that creates no other meanwhile.
func (m *managed) life(ctx context.Context) (life, error) {
	for {
		if p := m.manager.Pools().List()[0]; p.Ready == poolSize && p.Making == 0 {
			break
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return life{}, ctx.Err()
		}
	}
	began := time.Now()
	s, err := m.manager.Create(ctx, manager.CreateRequest{Spec: m.spec})
	if err != nil {
		return life{}, withHint(err)
	}
	first, err := m.echo(ctx, s.ID)
	err = errors.Join(err, m.manager.Delete(ctx, s.ID))
	return life{first: first.Sub(began), whole: time.Since(began)}, err
}

// echo returns when the first output was seen.
func (m *managed) echo(ctx context.Context, id sandpit.ID) (time.Time, error) {
	h, err := m.manager.Use(ctx, id)
	if err != nil {
		return time.Time{}, err
	}
	defer h.Release()
	w, err := workspace.New(h.Guest(), workspace.Options{})
	if err != nil {
		return time.Time{}, err
	}
	var seen firstOutput
	_, err = w.Run(h.Context(), sandpit.Command{Args: []string{"echo", word}, Stdout: &seen})
	if err == nil && seen.text() != word+"\n" {
		err = fmt.Errorf("echo printed %q", seen.text())
	}
	return seen.at, err
}
