package e2b

import (
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// teamHandlers serve teams, of which each owner is one.
type teamHandlers struct{ manager *manager.Manager }

// teamMeasurement is one measurement of all sandboxes of a team.
type teamMeasurement struct {
	At      time.Time `json:"timestamp"`
	Unix    int64     `json:"timestampUnix"`
	Running int       `json:"concurrentSandboxes"`
	Rate    float64   `json:"sandboxStartRate"` // a second
}

// rateWindow is the time over which the rate of starts is measured.
const rateWindow = time.Minute

// listTeams returns the team of the client.
func (h *teamHandlers) listTeams(c *call) (int, any, error) {
	// Keys are returned only when they are created.
	return http.StatusOK, []map[string]any{{"teamID": c.client.Owner, "name": c.client.Owner, "apiKey": "", "isDefault": true}}, nil
}

// checkTeam returns NotFound unless the path has the client's own team.
func (c *call) checkTeam() error {
	if id := c.r.PathValue("id"); id != c.client.Owner {
		return sandpit.Errorf(sandpit.NotFound, "team %.100q not found", id)
	}
	return nil
}

// measureTeam measures the sandboxes of the client's owner. The server keeps no history.
func (h *teamHandlers) measureTeam(c *call) teamMeasurement {
	now := time.Now()
	m := teamMeasurement{At: now.UTC(), Unix: now.Unix()}
	begun := 0
	for _, b := range h.manager.List(manager.Filter{Owner: c.client.Owner}) {
		if stateName(b) == running {
			m.Running++
		}
		if now.Sub(b.CreatedAt) < rateWindow {
			begun++
		}
	}
	m.Rate = float64(begun) / rateWindow.Seconds()
	return m
}

// getMetrics returns how many sandboxes a team has.
func (h *teamHandlers) getMetrics(c *call) (int, any, error) {
	if err := c.checkTeam(); err != nil {
		return 0, nil, err
	}
	asked, err := includesNow(c)
	list := []teamMeasurement{}
	if asked {
		list = append(list, h.measureTeam(c))
	}
	return http.StatusOK, list, err
}

// getMaximum returns the maximum of a metric.
func (h *teamHandlers) getMaximum(c *call) (int, any, error) {
	if err := c.checkTeam(); err != nil {
		return 0, nil, err
	}
	if _, err := includesNow(c); err != nil {
		return 0, nil, err
	}
	m := h.measureTeam(c)
	value := m.Rate
	switch metric := c.r.URL.Query().Get("metric"); metric {
	case "concurrent_sandboxes":
		value = float64(m.Running)
	case "sandbox_start_rate":
	default:
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "metric %.40q: want concurrent_sandboxes or sandbox_start_rate", metric)
	}
	return http.StatusOK, map[string]any{"timestamp": m.At, "timestampUnix": m.Unix, "value": value}, nil
}
