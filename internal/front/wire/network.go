package wire

import "github.com/sandpit-dev/sandpit"

// Network is what a sandbox may reach, and what became of that.
type Network struct {
	Policy sandpit.NetworkPolicy `json:"policy" doc:"What it may reach."`
	Stats  sandpit.NetworkStats  `json:"stats" doc:"What its network did. Zero for one that is offline."`
}

// SetNetwork replaces what a sandbox may reach.
type SetNetwork struct {
	Allow   []string                `json:"allow,omitempty" nullable:"false" doc:"What alone it may reach. Default: all that is not denied, or private."`
	Deny    []string                `json:"deny,omitempty" nullable:"false" doc:"What it may not reach, whatever is allowed."`
	Headers []sandpit.NetworkHeader `json:"headers,omitempty" nullable:"false" doc:"Headers that are set, outside of the sandbox, in requests by HTTPS."`
	Limits  sandpit.NetworkLimits   `json:"limits,omitzero" doc:"Bounds of what passes."`
	// Secrets are added to those that are known already.
	Secrets map[string]string `json:"secrets,omitempty" writeOnly:"true" doc:"Values that headers refer to, added to those that are known; an empty one is taken away. They are kept in memory, and never told."`
}

// NetworkDecisions are lines of a network log.
type NetworkDecisions struct {
	Items []sandpit.NetworkDecision `json:"items" nullable:"false" doc:"Oldest first. Equal decisions are one, with a count."`
}
