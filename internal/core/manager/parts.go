package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// newManager returns a manager whose parts are connected and that does nothing yet. Each part gets
// what it needs; none of them knows the manager.
func newManager(ctx context.Context, o Options) (*Manager, error) {
	pools, err := newPools(o)
	if err != nil {
		return nil, err
	}
	m := &Manager{
		o: o, identity: o.Store.Identity(), sandboxes: newIndex(), quota: newSandboxQuota(o),
		slots: newSlots(o), registry: &buildRegistry{}, snapshotUses: &snapshotUses{},
	}
	m.connectCore(WithActor(ctx, actorManager))
	m.connectLifecycle()
	m.connectGroups(pools)
	m.quota.mustShare = m.core.mustShare
	m.instances.onEnd = m.states.handleEnd
	m.creator.evictSpare = m.pools.evictSpare
	return m, nil
}

// connectCore creates the parts that all others need.
func (m *Manager) connectCore(own context.Context) {
	o := &m.o
	m.events = &Events{clock: o.Clock, log: o.Log, o: o, sandboxes: m.sandboxes}
	m.messages = &Messages{
		clock: o.Clock, events: m.events, identity: m.identity, log: o.Log, queue: o.Queue, sandboxes: m.sandboxes,
	}
	m.core = &core{
		events: m.events, log: o.Log, loops: newTasks(own), o: o, ops: newTasks(own), quota: m.quota,
		sandboxes: m.sandboxes, sweepRequest: make(chan struct{}, 1),
	}
	m.disk = &diskUse{
		core: m.core, log: o.Log, o: o, space: newSavedSpace(*o), store: o.Store,
		volumes:  &volumeSizes{byID: make(map[sandpit.ID]volumeSize)},
		saves:    diskspace.NewBudget(diskspace.Options{Name: "saved sandboxes", Disk: o.Disk}),
		archives: diskspace.NewBudget(diskspace.Options{Name: "archived sandboxes", Disk: o.ArchiveDisk}),
	}
	m.audit = &guestAudit{events: m.events, o: o}
	m.instances = &instances{audit: m.audit, core: m.core, identity: m.identity, log: o.Log, o: o}
	m.ports = &portPublisher{core: m.core, log: o.Log, o: o, sandboxes: m.sandboxes, useSandbox: m.Use}
	m.records = &recordStore{
		clock: o.Clock, disk: m.disk, o: o, quota: m.quota, sandboxes: m.sandboxes, store: o.Store,
	}
	m.secrets = &secretFiles{core: m.core, instances: m.instances, o: o}
	m.wall = &wallClock{
		watch: clock.NewWatch(o.Clock),
		clock: o.Clock, core: m.core, events: m.events, identity: m.identity, log: o.Log, messages: m.messages,
		queue: o.Queue, records: m.records, sandboxes: m.sandboxes, store: o.Store,
	}
}

// connectLifecycle creates the parts that change sandboxes.
func (m *Manager) connectLifecycle() {
	o := &m.o
	m.lifecycle = &lifecycle{
		clock: o.Clock, core: m.core, disk: m.disk, instances: m.instances, log: o.Log, messages: m.messages, o: o,
		quota: m.quota, records: m.records, secrets: m.secrets, slots: m.slots,
	}
	m.remover = &remover{
		clock: o.Clock, core: m.core, events: m.events, instances: m.instances, log: o.Log, messages: m.messages,
		records: m.records, sandboxes: m.sandboxes, secrets: m.secrets,
	}
	m.volumes = &Volumes{
		clock: o.Clock, core: m.core, disk: m.disk, events: m.events, log: o.Log, o: o, sandboxes: m.sandboxes, store: o.Store,
	}
	m.templates = &templateRecords{
		core: m.core, events: m.events, log: o.Log, o: o, registry: m.registry, store: o.Store,
	}
	m.expander = &expander{o: o, store: o.Store, templates: m.templates}
	m.snapshots = &Snapshots{
		clock: o.Clock, core: m.core, createSandbox: m.Create, deleteSandbox: m.Delete, disk: m.disk,
		events: m.events, identity: m.identity, instances: m.instances, lifecycle: m.lifecycle, log: o.Log, o: o,
		records: m.records, sandboxes: m.sandboxes, secrets: m.secrets, slots: m.slots, snapshotUses: m.snapshotUses,
		store: o.Store, useSandbox: m.Use, wall: m.wall,
	}
	m.creator = &creator{
		audit: m.audit, clock: o.Clock, core: m.core, events: m.events, identity: m.identity, instances: m.instances,
		log: o.Log, messages: m.messages, o: o, ports: m.ports, quota: m.quota, records: m.records, remover: m.remover,
		sandboxes: m.sandboxes, secrets: m.secrets, slots: m.slots, snapshotUses: m.snapshotUses, store: o.Store,
		volumes: m.volumes, wall: m.wall,
	}
	m.renewals = &renewals{core: m.core, log: o.Log, o: o, sandboxes: m.sandboxes}
	m.lifecycle.onRunning = m.renewals.renewSandbox
	m.failover = &failover{circuits: newCircuits(), create: m.createWith, log: o.Log, o: o, wall: m.wall}
	m.recreator = &recreator{
		audit: m.audit, clock: o.Clock, core: m.core, creator: m.creator, instances: m.instances, log: o.Log,
		messages: m.messages, o: o, records: m.records, remover: m.remover, secrets: m.secrets, slots: m.slots,
	}
}

// connectGroups creates the groups for callers and the periodic work.
func (m *Manager) connectGroups(pools map[string]*pool) {
	o := &m.o
	m.network = &Network{core: m.core, sandboxes: m.sandboxes, instances: m.instances, o: o, records: m.records}
	m.usage = &UsageMeter{
		core: m.core, events: m.events, lifecycle: m.lifecycle, log: o.Log, o: o, remover: m.remover,
		sandboxes: m.sandboxes,
	}
	m.builds = &Builds{
		clock: o.Clock, core: m.core, creator: m.creator, events: m.events, log: o.Log, messages: m.messages, o: o,
		registry: m.registry, sandboxes: m.sandboxes, slots: m.slots, snapshotUses: m.snapshotUses, snapshots: m.snapshots,
		store: o.Store, templates: m.templates, wall: m.wall,
	}
	m.pools = &Pools{
		byKey: pools, clock: o.Clock, core: m.core, creator: m.creator, expander: m.expander, log: o.Log,
		messages: m.messages, o: o, ports: m.ports, quota: m.quota, records: m.records, registry: m.registry,
		sandboxes: m.sandboxes, secrets: m.secrets, wall: m.wall,
	}
	m.templateGroup = &Templates{
		builds: m.builds, clock: o.Clock, log: o.Log, o: o, store: o.Store, templates: m.templates,
	}
	m.builtins = &Builtins{
		builds: m.builds, clock: o.Clock, o: o, registry: m.registry, store: o.Store, templateGroup: m.templateGroup,
	}
	m.actions = &policyActions{
		core: m.core, instances: m.instances, lifecycle: m.lifecycle, records: m.records, remover: m.remover,
		wall: m.wall,
	}
	m.volumeMeter = &volumeMeter{
		actions: m.actions, core: m.core, disk: m.disk, log: o.Log, o: o, sandboxes: m.sandboxes, volumes: m.volumes,
		passes: make(map[string]volumePass),
	}
	m.handler = &messageHandler{
		actions: m.actions, core: m.core, messages: m.messages, o: o, recreator: m.recreator, remover: m.remover,
		sandboxes: m.sandboxes, slots: m.slots, wall: m.wall,
	}
	m.states = &providerStates{
		core: m.core, instances: m.instances, lifecycle: m.lifecycle, log: o.Log, o: o, records: m.records, recreator: m.recreator,
		remover: m.remover,
	}
	m.hours = &hourKeeper{
		actions: m.actions, core: m.core, hours: m.quota.hours, log: o.Log, o: o, sandboxes: m.sandboxes, store: o.Store,
	}
	m.undeletable = newUndeletable(m.core, m.events, o.Log)
	m.reconciler = &reconciler{
		builds: m.builds, core: m.core, disk: m.disk, events: m.events, identity: m.identity, instances: m.instances,
		lifecycle: m.lifecycle, log: o.Log, o: o, pools: m.pools, ports: m.ports, records: m.records, recreator: m.recreator,
		remover: m.remover, sandboxes: m.sandboxes, snapshots: m.snapshots, states: m.states, store: o.Store,
		undeletable: m.undeletable, volumes: m.volumes,
	}
	m.sweeper = &sweeper{
		actions: m.actions, clock: o.Clock, core: m.core, lifecycle: m.lifecycle, log: o.Log, messages: m.messages,
		o: o, records: m.records, remover: m.remover, sandboxes: m.sandboxes, slots: m.slots, wall: m.wall,
	}
}

// Events returns the audit trail.
func (m *Manager) Events() *Events { return m.events }

// Messages returns the scheduled actions.
func (m *Manager) Messages() *Messages { return m.messages }

// Pools returns the pools of spares.
func (m *Manager) Pools() *Pools { return m.pools }

// Volumes returns the volumes.
func (m *Manager) Volumes() *Volumes { return m.volumes }

// Snapshots returns the snapshots.
func (m *Manager) Snapshots() *Snapshots { return m.snapshots }

// Templates returns the templates.
func (m *Manager) Templates() *Templates { return m.templateGroup }

// Builds returns the builds of templates.
func (m *Manager) Builds() *Builds { return m.builds }

// Builtins returns the templates that are part of the program.
func (m *Manager) Builtins() *Builtins { return m.builtins }

// Usage returns what measures sandboxes.
func (m *Manager) Usage() *UsageMeter { return m.usage }

// Network returns the networks of sandboxes.
func (m *Manager) Network() *Network { return m.network }
