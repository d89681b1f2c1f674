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

// rateWindow is the time of which the rate of starts is told.
const rateWindow = time.Minute

// teams tells whom a key belongs to.
func (h *teamHandlers) listTeams(c *call) (int, any, error) {
	// No key is told again that was made once.
	return http.StatusOK, []map[string]any{{"teamID": c.client.Owner, "name": c.client.Owner, "apiKey": "", "isDefault": true}}, nil
}

// team refuses teams that are none of who asks. NotFound.
func (c *call) checkTeam() error {
	if id := c.r.PathValue("id"); id != c.client.Owner {
		return sandpit.Errorf(sandpit.NotFound, "team %.100q not found", id)
	}
	return nil
}

// teamNow measures the sandboxes of who asks. As with those of one sandbox, what was
// before is kept nowhere.
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

// teamMetrics tells how many sandboxes a team has.
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

// maxTeamMetrics tells the most that there was of something.
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
