package e2b

import (
	"net/http"
	"runtime"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// nodeHandlers serve the only node that there is: the server's machine.
type nodeHandlers struct {
	manager   *manager.Manager
	describer *describer
}

// node is the machine of the server, the only node.
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

// measureNode describes the machine and what its sandboxes may use.
func (h *nodeHandlers) measureNode() node {
	n := node{ID: clientID, Name: clientID, Status: "ready", Metrics: nodeMetrics{CPUs: runtime.NumCPU()}}
	for _, b := range h.manager.List(manager.Filter{}) {
		switch {
		case b.State == sandpit.StateCreating:
			n.Starting++
		case stateName(b) == running:
			n.Count++
			limits := h.describer.limitsOf(b)
			n.Metrics.AllocatedCPUs += limits.CPUs
			n.Metrics.AllocatedMemory += limits.Memory
		}
	}
	return n
}

// listNodes lists the machine. It is for administrators.
func (h *nodeHandlers) listNodes(c *call) (int, any, error) {
	if err := requireAdmin(c, h.manager, "list nodes"); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, []node{h.measureNode()}, nil
}

// getNode describes the machine and its running sandboxes. It is for administrators.
func (h *nodeHandlers) getNode(c *call) (int, any, error) {
	if err := requireAdmin(c, h.manager, "look at a node"); err != nil {
		return 0, nil, err
	}
	if id := c.r.PathValue("id"); id != clientID {
		return 0, nil, sandpit.Errorf(sandpit.NotFound, "node %.100q not found", id)
	}
	n := struct {
		node

		Sandboxes []sandboxItem `json:"sandboxes"`
	}{h.measureNode(), []sandboxItem{}}
	for _, b := range h.manager.List(manager.Filter{}) {
		if stateName(b) == running {
			n.Sandboxes = append(n.Sandboxes, h.describer.toListed(b))
		}
	}
	return http.StatusOK, n, nil
}
