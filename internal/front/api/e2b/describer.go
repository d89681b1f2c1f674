package e2b

import (
	"cmp"
	"context"

	"github.com/sandpit-dev/sandpit"
)

// describer describes sandboxes as E2B's clients expect it.
type describer struct {
	tokens Tokens
	domain func() string
	limits sandpit.Resources // of sandboxes whose spec has none
}

// toSandbox describes a sandbox to a client that may use it, with the client's tokens.
func (d *describer) toSandbox(ctx context.Context, b sandpit.Sandbox) (sandbox, error) {
	m, made := markOf(b)
	private := !made || m.Private
	guest, traffic, err := d.tokens.AccessTokens(ctx, b.ID, private)
	if err != nil {
		return sandbox{}, err
	}
	out := sandbox{
		ID: b.ID, Template: m.Template, Alias: m.Template, Client: clientID, Version: guestVersion,
		GuestToken: guest, Domain: d.domainName(),
	}
	if private {
		out.TrafficToken = &traffic
	}
	return out, nil
}

// domainName returns the domain of ports, or nil.
func (d *describer) domainName() *string {
	if name := d.domain(); name != "" {
		return &name
	}
	return nil
}

// limitsOf returns the limits of a sandbox: its own, or the usual ones.
func (d *describer) limitsOf(b sandpit.Sandbox) sandpit.Resources {
	r, usual := b.Spec.Resources, d.limits
	return sandpit.Resources{
		Memory: cmp.Or(r.Memory, usual.Memory), CPUs: cmp.Or(r.CPUs, usual.CPUs),
		Disk: cmp.Or(r.Disk, usual.Disk), PIDs: cmp.Or(r.PIDs, usual.PIDs),
	}
}

// toListed describes a sandbox as an item of a list.
func (d *describer) toListed(b sandpit.Sandbox) sandboxItem {
	m, _ := markOf(b)
	limits := d.limitsOf(b)
	end := b.Lease.Deadline.UTC()
	if end.IsZero() {
		end = noDeadline
	}
	return sandboxItem{
		ID: b.ID, Template: m.Template, Alias: m.Template, Client: clientID, StartedAt: b.CreatedAt.UTC(), EndAt: end, State: stateName(b),
		CPUs: countCPUs(limits), Memory: limits.Memory >> 20, Disk: limits.Disk >> 20, Version: guestVersion, Metadata: toMetadata(b),
	}
}

// toList describes sandboxes as a list.
func (d *describer) toList(list []sandpit.Sandbox) []sandboxItem {
	all := make([]sandboxItem, len(list))
	for i, b := range list {
		all[i] = d.toListed(b)
	}
	return all
}
