package gvisor

import (
	"context"

	"github.com/sandpit-dev/sandpit"
)

// List implements sandpit.Provider.
func (p *Provider) List(context.Context) ([]sandpit.Placement, error) {
	// In this order: a sandbox that is stopped, started, archived or restored meanwhile is in at
	// least one list.
	archivedBefore, err := p.states.archivedRecords()
	if err != nil {
		return nil, err
	}
	before, err := p.states.records()
	if err != nil {
		return nil, err
	}
	found, err := listRecords(p.engines)
	if err != nil {
		return nil, err
	}
	after, err := p.states.records()
	if err != nil {
		return nil, err
	}
	archivedAfter, err := p.states.archivedRecords()
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
			r.Spec.Env = nil // may have secrets
			list = append(list, sandpit.Placement{
				ID: r.ID, Handle: handle{Engine: engine, ID: r.ID}.toJSON(), Spec: r.Spec, CreatedAt: r.CreatedAt, CheckpointedAt: p.states.checkpointedAt(r.ID),
				SavedBytes: p.states.bytes(r.ID), CheckpointBytes: p.states.checkpoints.Bytes(string(r.ID)),
			})
		}
	}
	add(handleStopped, after)
	for engine, records := range found {
		add(engine, records)
	}
	add(handleStopped, before)
	add(handleStopped, archivedAfter)
	add(handleStopped, archivedBefore)
	return list, nil
}
