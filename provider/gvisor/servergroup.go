package gvisor

import "github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"

// ServerGroup is the control group of a server. It is beside the groups of engines and has more
// weight, so that the server responds while sandboxes use the whole machine.
type ServerGroup struct{ group *cgroup.ServerGroup }

// EnterServerGroup moves this process into a control group of its own, and removes empty groups
// that killed servers have left in the same parent. memory is how many bytes the server uses for
// requests, which are protected from reclaim where possible.
//
// Unsupported: the process may not create such a group, and stays in its group.
func EnterServerGroup(memory int64) (*ServerGroup, error) {
	g, err := cgroup.EnterServerGroup(memory)
	if err != nil {
		return nil, err
	}
	return &ServerGroup{g}, nil
}

// Close moves this process to the group that it came from and removes the server's group.
// Closing nil does nothing.
func (g *ServerGroup) Close() error {
	if g == nil {
		return nil
	}
	return g.group.Close()
}

// String returns the group's directories.
func (g *ServerGroup) String() string { return g.group.String() }

// reaperArguments returns the arguments with which a reaper leaves the group.
func (g *ServerGroup) reaperArguments() []string {
	if g == nil {
		return nil
	}
	return g.group.ReaperArguments()
}
