package e2b

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// measurement is one measurement of a sandbox.
type measurement struct {
	At        time.Time `json:"timestamp"`
	Unix      int64     `json:"timestampUnix"`
	CPUs      int       `json:"cpuCount"`
	CPU       float64   `json:"cpuUsedPct"`
	Memory    int64     `json:"memUsed"`
	MemoryAll int64     `json:"memTotal"`
	Cache     int64     `json:"memCache"` // always 0: included in memUsed
	Disk      int64     `json:"diskUsed"`
	DiskAll   int64     `json:"diskTotal"`
}

const (
	// measureInterval is the time over which the use of processors is measured.
	measureInterval = 100 * time.Millisecond
	// maxMeasured is the maximum number of sandboxes of one call.
	maxMeasured = 100
)

// countCPUs returns the number of processors of a sandbox, rounded up.
func countCPUs(limits sandpit.Resources) int {
	if limits.CPUs <= 0 {
		return runtime.NumCPU()
	}
	return int(math.Ceil(limits.CPUs))
}

// metricHandlers measure sandboxes.
type metricHandlers struct{ manager *manager.Manager }

// getMetrics measures a sandbox. It returns one current measurement; the server keeps no
// history.
func (h *metricHandlers) getMetrics(c *call) (int, any, error) {
	asked, err := includesNow(c)
	if err != nil {
		return 0, nil, err
	}
	b, err := findSandbox(c, h.manager)
	if err != nil {
		return 0, nil, err
	}
	if !asked || !isMeasured(b) {
		return http.StatusOK, []measurement{}, nil
	}
	all, err := h.measureAll(c.r.Context(), []sandpit.Sandbox{b})
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, []measurement{all[b.ID]}, nil
}

// includesNow reports whether the time range of a query includes the present.
func includesNow(c *call) (bool, error) {
	query := c.r.URL.Query()
	start, err := parseUnix(query, "start", math.MinInt64)
	if err != nil {
		return false, err
	}
	end, err := parseUnix(query, "end", math.MaxInt64)
	now := time.Now().Unix()
	return start <= now && now <= end, err
}

func parseUnix(query url.Values, name string, usual int64) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, sandpit.Errorf(sandpit.Invalid, "%s %.40q: want seconds since 1970", name, text)
	}
	return n, nil
}

// isMeasured reports whether a sandbox can be measured.
func isMeasured(b sandpit.Sandbox) bool {
	return b.State == sandpit.StateRunning || b.State == sandpit.StatePaused
}

// listMetrics measures several sandboxes, and leaves out unknown ones.
func (h *metricHandlers) listMetrics(c *call) (int, any, error) {
	ids := strings.Split(strings.Join(c.r.URL.Query()["sandbox_ids"], ","), ",")
	if len(ids) > maxMeasured {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "sandbox_ids: %d, want at most %d", len(ids), maxMeasured)
	}
	var list []sandpit.Sandbox
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		if b, err := api.Find(c.r.Context(), h.manager, sandpit.ID(id)); err == nil && isMeasured(b) {
			list = append(list, b)
		}
	}
	all, err := h.measureAll(c.r.Context(), list)
	return http.StatusOK, map[string]any{"sandboxes": all}, err
}

// measureAll measures sandboxes. It leaves out a sandbox that cannot be measured, unless it is
// the only one.
func (h *metricHandlers) measureAll(ctx context.Context, list []sandpit.Sandbox) (map[sandpit.ID]measurement, error) {
	before := make(map[sandpit.ID]sandpit.Stats, len(list))
	for _, b := range list {
		stats, err := h.manager.Usage().Measure(ctx, b.ID)
		if err != nil && len(list) == 1 {
			return nil, err
		}
		if err == nil {
			before[b.ID] = stats
		}
	}
	select {
	case <-time.After(measureInterval):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	all := make(map[sandpit.ID]measurement, len(before))
	for id, first := range before {
		last, err := h.manager.Usage().Measure(ctx, id)
		if err != nil && len(list) == 1 {
			return nil, err
		}
		if err == nil {
			all[id] = newMeasurement(first, last)
		}
	}
	return all, nil
}

func newMeasurement(first, last sandpit.Stats) measurement {
	m := measurement{
		At: last.At.UTC(), Unix: last.At.Unix(), CPUs: countCPUs(last.Limits), Memory: last.Memory, MemoryAll: last.Limits.Memory,
		Disk: last.Disk, DiskAll: last.Limits.Disk,
	}
	if took := last.At.Sub(first.At); took > 0 && last.CPU > first.CPU {
		m.CPU = math.Round(float64(last.CPU-first.CPU)/float64(took)*10_000) / 100
	}
	return m
}
