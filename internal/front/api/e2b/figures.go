package e2b

import (
	"net/http"
	"runtime"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// teamMetric is one measurement of all sandboxes of a team.
type teamMetric struct {
	At      time.Time `json:"timestamp"`
	Unix    int64     `json:"timestampUnix"`
	Running int       `json:"concurrentSandboxes"`
	Rate    float64   `json:"sandboxStartRate"` // a second
}

// rateOver is the time of which the rate of starts is told.
const rateOver = time.Minute

// team refuses teams that are none of who asks. NotFound.
func (c *call) team() error {
	if id := c.r.PathValue("id"); id != c.who.Owner {
		return sandpit.Errorf(sandpit.NotFound, "team %.100q not found", id)
	}
	return nil
}

// teamNow measures the sandboxes of who asks. As with those of one sandbox, what was
// before is kept nowhere.
func (s *Server) teamNow(c *call) teamMetric {
	now := time.Now()
	m := teamMetric{At: now.UTC(), Unix: now.Unix()}
	begun := 0
	for _, b := range s.o.Manager.List(manager.Filter{Owner: c.who.Owner}) {
		if stateOf(b) == running {
			m.Running++
		}
		if now.Sub(b.CreatedAt) < rateOver {
			begun++
		}
	}
	m.Rate = float64(begun) / rateOver.Seconds()
	return m
}

// teamMetrics tells how many sandboxes a team has.
func (s *Server) teamMetrics(c *call) (int, any, error) {
	if err := c.team(); err != nil {
		return 0, nil, err
	}
	asked, err := within(c)
	list := []teamMetric{}
	if asked {
		list = append(list, s.teamNow(c))
	}
	return http.StatusOK, list, err
}

// maxTeamMetrics tells the most that there was of something.
func (s *Server) maxTeamMetrics(c *call) (int, any, error) {
	if err := c.team(); err != nil {
		return 0, nil, err
	}
	if _, err := within(c); err != nil {
		return 0, nil, err
	}
	m := s.teamNow(c)
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

// node is the machine that a server runs on, which is its only one.
type node struct {
	ID       string      `json:"nodeID"`
	Name     string      `json:"id"`
	Status   string      `json:"status"`
	Count    int         `json:"sandboxCount"`
	Starting int         `json:"sandboxStartingCount"`
	Metrics  nodeMetrics `json:"metrics"`
}

type nodeMetrics struct {
	CPUs            int     `json:"cpuCount"`
	AllocatedCPUs   float64 `json:"allocatedCPU"`
	AllocatedMemory int64   `json:"allocatedMemoryBytes"`
}

// nodeNow tells of the machine, by what sandboxes may use of it.
func (s *Server) nodeNow() node {
	n := node{ID: clientID, Name: clientID, Status: "ready", Metrics: nodeMetrics{CPUs: runtime.NumCPU()}}
	for _, b := range s.o.Manager.List(manager.Filter{}) {
		switch {
		case b.State == sandpit.StateCreating:
			n.Starting++
		case stateOf(b) == running:
			n.Count++
			limits := s.limits(b)
			n.Metrics.AllocatedCPUs += limits.CPUs
			n.Metrics.AllocatedMemory += limits.Memory
		}
	}
	return n
}

// nodes tells administrators of the machine.
func (s *Server) nodes(c *call) (int, any, error) {
	if err := s.administrator(c, "list nodes"); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, []node{s.nodeNow()}, nil
}

// getNode tells administrators of the machine, and of what runs there.
func (s *Server) getNode(c *call) (int, any, error) {
	if err := s.administrator(c, "look at a node"); err != nil {
		return 0, nil, err
	}
	if id := c.r.PathValue("id"); id != clientID {
		return 0, nil, sandpit.Errorf(sandpit.NotFound, "node %.100q not found", id)
	}
	n := struct {
		node

		Sandboxes []listed `json:"sandboxes"`
	}{s.nodeNow(), []listed{}}
	for _, b := range s.o.Manager.List(manager.Filter{}) {
		if stateOf(b) == running {
			n.Sandboxes = append(n.Sandboxes, s.listed(b))
		}
	}
	return http.StatusOK, n, nil
}
