package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// Provider creates sandboxes in a World. Close breaks its connections and leaves the sandboxes
// running; World.Close ends them. All methods may be called concurrently.
type Provider struct {
	world *World

	mu        sync.Mutex
	instances []*Instance
	closed    bool
}

var _ sandpit.Provider = (*Provider)(nil)

// World returns the machine on which p creates sandboxes.
func (p *Provider) World() *World { return p.world }

// Create implements sandpit.Provider.
func (p *Provider) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	if err := errors.Join(id.Validate(), validateSpec(spec)); err != nil {
		return nil, err
	}
	var inst *Instance
	err := p.performOp(ctx, OpCreate, id, func() error {
		b, err := p.world.createSandbox(ctx, id, spec)
		if err == nil {
			inst = p.newInstance(b)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	return inst, nil
}

var hostname = pattern.New(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)

// validateSpec returns an error for an invalid spec, or one that this provider does not support.
func validateSpec(s sandpit.Spec) error {
	if s.Hostname != "" && !hostname().MatchString(s.Hostname) {
		return sandpit.Errorf(sandpit.Invalid, "hostname %q: want letters, digits and inner dashes, at most 63", s.Hostname)
	}
	if s.WorkDir != "" && s.WorkDir != sandpit.HomeDir && (!path.IsAbs(s.WorkDir) || path.Clean(s.WorkDir) != s.WorkDir || strings.Contains(s.WorkDir, "\x00")) {
		return sandpit.Errorf(sandpit.Invalid, "working directory %q: want an absolute path", s.WorkDir)
	}
	for name, value := range s.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return sandpit.Errorf(sandpit.Invalid, "invalid environment variable %q", name)
		}
	}
	if s.Network.Online {
		return sandpit.Errorf(sandpit.Unsupported, "network: not supported by fake sandboxes")
	}
	if _, ok := s.Image.Snapshot(); ok {
		return nil // its snapshot determines the mounts
	}
	for _, m := range s.Mounts {
		if err := m.CheckSource(); err != nil {
			return err
		}
		if m.Volume == "" && !m.Temporary || m.ReadOnly {
			return sandpit.Errorf(sandpit.Unsupported, "mounts: a fake sandbox supports only writable volumes and temporary directories")
		}
		if !path.IsAbs(m.Target) || path.Clean(m.Target) != m.Target || m.Target == "/" {
			return sandpit.Errorf(sandpit.Invalid, "mount target %q: want an absolute path other than /", m.Target)
		}
	}
	return nil
}

// List implements sandpit.Provider.
func (p *Provider) List(ctx context.Context) ([]sandpit.Placement, error) {
	var list []sandpit.Placement
	err := p.performOp(ctx, OpList, "", func() error {
		for _, b := range p.world.listSandboxes() {
			spec, _ := b.identityOf()
			spec = spec.Clone()
			spec.Env = nil // it may contain secrets
			list = append(list, sandpit.Placement{
				ID: b.id, Handle: handleOf(b.id), Spec: spec, CreatedAt: b.createdAt, CheckpointedAt: b.savedAt(),
				SavedBytes: b.savedBytes(), CheckpointBytes: diskUsage(b.checkpointDir()), State: b.currentState().toState(),
			})
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	return list, nil
}

// handle identifies a sandbox for Attach.
type handle struct {
	ID sandpit.ID `json:"fake"`
}

func handleOf(id sandpit.ID) []byte {
	data, _ := json.Marshal(handle{id}) // a string always encodes
	return data
}

// Attach implements sandpit.Provider.
func (p *Provider) Attach(ctx context.Context, data []byte) (sandpit.Instance, error) {
	var h handle
	if err := json.Unmarshal(data, &h); err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "handle: %w", err)
	}
	if err := h.ID.Validate(); err != nil {
		return nil, fmt.Errorf("handle: %w", err)
	}
	var inst *Instance
	err := p.performOp(ctx, OpAttach, h.ID, func() error {
		b, err := p.world.findSandbox(h.ID)
		if err == nil {
			inst = p.newInstance(b)
		}
		return errors.Join(err, ctx.Err())
	})
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	return inst, nil
}

// performOp performs an operation of an open provider, and applies the next fault for it.
func (p *Provider) performOp(ctx context.Context, op Op, id sandpit.ID, do func() error) error {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return sandpit.Errorf(sandpit.Unavailable, "the provider is closed")
	}
	return p.world.performCall(ctx, call{op: op, id: id}, do)
}

func (p *Provider) newInstance(b *sandbox) *Instance {
	i := newInstance(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.instances = append(p.instances, i)
	return i
}

// Close implements sandpit.Provider.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, i := range p.instances {
		i.closeIdle()
	}
	p.instances = nil
	return nil
}
