package telemetry

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// Sources provide values when the metrics are read.
type Sources struct {
	Manager *manager.Manager
	Queue   queue.Queue
	// Shares returns the use of resources that owners share. Default: none.
	Shares func() []fairshare.Status
	// Sandboxes is how many sandboxes have figures of their own. Default: none.
	Sandboxes int
}

// sourceLimit is how long a source may take.
const sourceLimit = 5 * time.Second

// Watch adds what the sources know. It must be called at most once.
func (m *Metrics) Watch(s Sources) { m.registry.MustRegister(newWatcher(s)) }

type watcher struct {
	Sources

	sandboxes, most, uses, pools, poolSize, messages, lag, up *prometheus.Desc

	units, used, waiting, refused *prometheus.Desc // of shared resources
	eventsWaiting, eventsLost     *prometheus.Desc

	// of single providers
	providerSandboxes, providerMost, providerHours, providerMostHours, providerOpen, providerUndeletable *prometheus.Desc

	single sandboxFigures // of single sandboxes
	all    sandboxFigures // of all that run
}

// sandboxFigures describe what sandboxes use.
type sandboxFigures struct {
	memory, memoryLimit, cpu, disk, processes *prometheus.Desc
}

func (f sandboxFigures) listDescs() []*prometheus.Desc {
	return []*prometheus.Desc{f.memory, f.memoryLimit, f.cpu, f.disk, f.processes}
}

func newWatcher(s Sources) *watcher {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
	}
	return &watcher{
		Sources:             s,
		sandboxes:           desc("sandboxes", "Sandboxes by state, without those that wait in pools.", "state"),
		most:                desc("sandboxes_max", "How many sandboxes there may be."),
		uses:                desc("active_operations", "Uses of sandboxes and operations that are under way."),
		pools:               desc("pool_sandboxes", "Sandboxes of pools that wait, or are being made.", "provider", "image", "state"),
		poolSize:            desc("pool_size", "How many shall wait at least.", "provider", "image"),
		messages:            desc("queue_messages", "Messages of the queue by their state.", "state"),
		lag:                 desc("queue_lag_seconds", "How long the oldest message is overdue; 0 if none is."),
		up:                  desc("source_up", "1 if what the figures come from answered, else 0.", "source"),
		eventsWaiting:       desc("events_waiting", "Events waiting to be written."),
		providerSandboxes:   desc("provider_sandboxes", "Sandboxes of a provider, without stopped, suspended and archived ones.", "provider"),
		providerMost:        desc("provider_sandboxes_max", "How many a provider may have; 0 is no limit of its own.", "provider"),
		providerHours:       desc("provider_sandbox_seconds", "How long the sandboxes of a provider have run in this calendar month.", "provider"),
		providerMostHours:   desc("provider_sandbox_seconds_max", "How long they may run; 0 is no limit.", "provider"),
		providerOpen:        desc("provider_circuit_open", "1 while requests are passed on to other providers because of earlier failures, else 0.", "provider"),
		providerUndeletable: desc("provider_undeletable_sandboxes", "Sandboxes that a provider has not deleted for more than ten minutes.", "provider"),

		eventsLost: desc("events_lost_total", "Events lost because too many waited."),

		single: sandboxFigures{
			memory:      desc("sandbox_memory_bytes", "Memory that a sandbox uses.", "sandbox", "owner"),
			memoryLimit: desc("sandbox_memory_limit_bytes", "Memory that a sandbox may use; 0 is no limit.", "sandbox", "owner"),
			cpu:         desc("sandbox_cpu_seconds_total", "Time on processors that a sandbox has used since its start.", "sandbox", "owner"),
			disk:        desc("sandbox_disk_bytes", "Bytes that a sandbox has written and kept.", "sandbox", "owner"),
			processes:   desc("sandbox_processes", "Processes and threads of a sandbox.", "sandbox", "owner"),
		},
		all: sandboxFigures{
			memory:      desc("sandboxes_memory_bytes", "Memory that all running sandboxes use."),
			memoryLimit: desc("sandboxes_memory_limit_bytes", "Memory that all running sandboxes may use."),
			cpu:         desc("sandboxes_cpu_seconds", "Time on processors that the sandboxes that run now have used since their start."),
			disk:        desc("sandboxes_disk_bytes", "Bytes that all running sandboxes have written and kept."),
			processes:   desc("sandboxes_processes", "Processes and threads of all running sandboxes."),
		},

		units:   desc("resource_units", "Total amount of a resource that owners share.", "resource"),
		used:    desc("resource_units_used", "Amount of the resource that all owners use.", "resource"),
		waiting: desc("resource_requests_waiting", "Requests that wait for the resource.", "resource"),
		refused: desc("resource_requests_refused_total", "Requests refused because their owner, or all owners, reached the limit.", "resource"),
	}
}

// Describe implements prometheus.Collector.
func (w *watcher) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{w.sandboxes, w.most, w.uses, w.pools, w.poolSize, w.messages, w.lag, w.up, w.units, w.used, w.waiting, w.refused, w.eventsWaiting, w.eventsLost} {
		ch <- d
	}
	for _, d := range w.listProviderDescs() {
		ch <- d
	}
	for _, d := range append(w.single.listDescs(), w.all.listDescs()...) {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (w *watcher) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	stats, states := w.Manager.Stats(), w.Manager.CountStates()
	for _, state := range []sandpit.State{ // each exists from the beginning
		sandpit.StateCreating, sandpit.StateRunning, sandpit.StatePausing, sandpit.StatePaused, sandpit.StateResuming,
		sandpit.StateStopping, sandpit.StateStopped, sandpit.StateArchiving, sandpit.StateArchived, sandpit.StateRestoring,
		sandpit.StateError, sandpit.StateDeleting,
	} {
		gauge(w.sandboxes, float64(states[state]), string(state))
	}
	gauge(w.most, float64(stats.MaxSandboxes))
	gauge(w.uses, float64(stats.ActiveOperations))
	w.collectPools(gauge)
	w.collectProviders(gauge)
	w.collectShares(gauge, ch)
	w.collectSandboxes(gauge, ch)
	waiting, lost := w.Manager.Events().Status()
	gauge(w.eventsWaiting, float64(waiting))
	ch <- prometheus.MustNewConstMetric(w.eventsLost, prometheus.CounterValue, float64(lost))
	ctx, cancel := context.WithTimeout(context.Background(), sourceLimit)
	defer cancel()
	q, err := w.Queue.Stats(ctx)
	if err != nil {
		gauge(w.up, 0, "queue")
		return
	}
	gauge(w.up, 1, "queue")
	gauge(w.messages, float64(q.Pending), "pending")
	gauge(w.messages, float64(q.Claimed), "claimed")
	gauge(w.messages, float64(q.Dead), "dead")
	lag := 0.0
	if !q.OldestDue.IsZero() {
		lag = max(0, time.Since(q.OldestDue).Seconds())
	}
	gauge(w.lag, lag)
}

func (w *watcher) listProviderDescs() []*prometheus.Desc {
	return []*prometheus.Desc{
		w.providerSandboxes, w.providerMost, w.providerHours, w.providerMostHours, w.providerOpen, w.providerUndeletable,
	}
}

func (w *watcher) collectProviders(gauge func(*prometheus.Desc, float64, ...string)) {
	for _, p := range w.Manager.ProviderStatuses() {
		open := 0.0
		if p.Circuit != manager.CircuitClosed {
			open = 1
		}
		for d, value := range map[*prometheus.Desc]float64{
			w.providerSandboxes: float64(p.Sandboxes), w.providerMost: float64(p.MaxSandboxes), w.providerHours: p.Used.Seconds(),
			w.providerMostHours: float64(p.MaxHours) * time.Hour.Seconds(), w.providerOpen: open, w.providerUndeletable: float64(p.Undeletable),
		} {
			gauge(d, value, p.Name)
		}
	}
}

func (w *watcher) collectShares(gauge func(*prometheus.Desc, float64, ...string), ch chan<- prometheus.Metric) {
	if w.Shares == nil {
		return
	}
	for _, s := range w.Shares() {
		gauge(w.units, float64(s.Total), s.Name)
		gauge(w.used, float64(s.Used), s.Name)
		gauge(w.waiting, float64(s.Waiting), s.Name)
		ch <- prometheus.MustNewConstMetric(w.refused, prometheus.CounterValue, float64(s.Refused), s.Name)
	}
}

// collectSandboxes reports the use of all sandboxes together, and of those that use the most
// memory: the number of series is bounded.
func (w *watcher) collectSandboxes(gauge func(*prometheus.Desc, float64, ...string), ch chan<- prometheus.Metric) {
	list := w.Manager.Usage().Latest()
	slices.SortFunc(list, func(a, b manager.Measurement) int {
		return cmp.Or(cmp.Compare(b.Stats.Memory, a.Stats.Memory), cmp.Compare(a.ID, b.ID))
	})
	var sum sandpit.Stats
	for i, one := range list {
		s := one.Stats
		sum.Memory, sum.CPU, sum.Disk, sum.PIDs = sum.Memory+s.Memory, sum.CPU+s.CPU, sum.Disk+s.Disk, sum.PIDs+s.PIDs
		sum.Limits.Memory += s.Limits.Memory
		if i >= w.Sandboxes {
			continue
		}
		labels := []string{string(one.ID), one.Owner}
		gauge(w.single.memory, float64(s.Memory), labels...)
		gauge(w.single.memoryLimit, float64(s.Limits.Memory), labels...)
		ch <- prometheus.MustNewConstMetric(w.single.cpu, prometheus.CounterValue, s.CPU.Seconds(), labels...)
		gauge(w.single.disk, float64(s.Disk), labels...)
		gauge(w.single.processes, float64(s.PIDs), labels...)
	}
	gauge(w.all.memory, float64(sum.Memory))
	gauge(w.all.memoryLimit, float64(sum.Limits.Memory))
	gauge(w.all.cpu, sum.CPU.Seconds())
	gauge(w.all.disk, float64(sum.Disk))
	gauge(w.all.processes, float64(sum.PIDs))
}

// collectPools adds pools up that differ in their limits only.
func (w *watcher) collectPools(gauge func(*prometheus.Desc, float64, ...string)) {
	type kind struct{ provider, image string }
	type counts struct{ ready, making, size int }
	sums := make(map[kind]counts)
	for _, p := range w.Manager.Pools().List() {
		k := kind{p.Provider, imageName(p.Spec.Image)}
		c := sums[k]
		sums[k] = counts{c.ready + p.Ready, c.making + p.Making, c.size + p.Size}
	}
	for k, c := range sums {
		gauge(w.pools, float64(c.ready), k.provider, k.image, "ready")
		gauge(w.pools, float64(c.making), k.provider, k.image, "making")
		gauge(w.poolSize, float64(c.size), k.provider, k.image)
	}
}

// routeOf is a pattern of http.ServeMux without its method.
func routeOf(pattern string) string {
	if pattern == "" {
		return "none"
	}
	if _, path, found := strings.Cut(pattern, " "); found {
		return strings.TrimSpace(path)
	}
	return pattern
}
