package gvisor

import (
	"context"

	"github.com/sandpit-dev/sandpit"
)

// List implements sandpit.Provider.
func (p *Provider) List(context.Context) ([]sandpit.Placement, error) {
	// In this order: what is stopped or started meanwhile is in one of both, or in
	// both.
	before, err := p.awayRecords()
	if err != nil {
		return nil, err
	}
	found, err := listRecords(p.engines)
	if err != nil {
		return nil, err
	}
	after, err := p.awayRecords()
	if err != nil {
		return nil, err
	}
	var list []sandpit.Placement
	seen := make(map[sandpit.ID]bool)
	add := func(engine string, records []record) {
		for _, r := range records {
			if seen[r.ID] {
				continue
			}
			seen[r.ID] = true
			r.Spec.Env = nil // nobody's business
			list = append(list, sandpit.Placement{
				ID: r.ID, Handle: handle{Engine: engine, ID: r.ID}.encode(), Spec: r.Spec, CreatedAt: r.CreatedAt, CheckpointedAt: p.checkpointedAt(r.ID),
				SavedBytes: p.savedBytes(r.ID), CheckpointBytes: p.checkpointBytes(r.ID),
			})
		}
	}
	add(handleEngine(""), after)
	for engine, records := range found {
		add(engine, records)
	}
	add(handleEngine(""), before)
	left, err := p.leftovers()
	if err != nil {
		return nil, err
	}
	add(handleEngine(""), left)
	return list, nil
}
